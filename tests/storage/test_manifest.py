"""The manifest: which labels are equal, and which runs have them."""

from pathlib import Path

import pytest

from raysafl.storage.manifest import Entry, Label, Manifest, Table, same_label
from raysafl.storage.store import Store


def test_no_flipped_bit_of_a_manifest_is_read_as_a_manifest(tmp_path: Path) -> None:
    store, file = Store(tmp_path), tmp_path / "manifest.json"
    ids = {"FedAvg": "9b2e1c", "Scaffold": "9b2e1d"}
    entries = [Entry(run_id=i, labels={"method": name}) for name, i in ids.items()]
    manifest = Manifest(name="m", axes=["method"], entries=entries, table=Table())
    store.write_manifest(manifest)
    assert store.manifest() == manifest
    content = file.read_bytes()
    bits = [*range(8 * 80), *range(8 * 80, 8 * len(content), 9)]
    assert len(bits) > 1000
    for bit in bits:  # all of the seal's, and of the rest each ninth
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"manifest\.json cannot be read: it"):
            store.manifest()


def test_runs_without_a_label_are_not_among_those_that_have_it() -> None:
    labels: list[dict[str, Label]] = [{"p": 1, "s": 2}, {"p": 1}, {"p": 3}]
    entries = [Entry(run_id=f"run{k}", labels=own) for k, own in enumerate(labels)]
    manifest = Manifest(name="m", axes=["p", "s"], entries=entries, table=Table())
    assert manifest.select({"s": "2"}) == ["run0"]
    assert manifest.select({"p": "1"}) == ["run0", "run1"]
    assert manifest.select({"p": "3,1"}) == ["run0", "run1", "run2"]
    assert manifest.select({"p": "1, 3", "s": "2"}) == ["run0"]
    with pytest.raises(ValueError, match=r"no run has p=5: known are 1, 3$"):
        manifest.select({"p": "1,5"})
    with pytest.raises(ValueError, match="no run has s=5"):
        manifest.select({"s": "5"})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0 + 1e-12, True),
        (0.1 + 0.2, 0.3, True),
        (1, 1.001, False),
        (10**12, 10**12 + 1, False),
        ("1", 1.0, False),
    ],
)
def test_labels_are_equal_up_to_rounding_from_either_side(
    one: Label, other: Label, same: bool
) -> None:
    assert same_label(one, other) is same_label(other, one) is same
