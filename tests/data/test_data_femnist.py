"""FEMNIST by writer, on small files as LEAF and Hugging Face have them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysafl as fl
from raysafl.data import ByUser, Dataset, Femnist

# How many samples each writer has, in the order of the files; LEAF keeps none of "f1".
SIZES = {"f9": 10, "f2": 1, "f5": 25}


def pixels(writer: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rng = np.random.default_rng(int(writer[1]))
    return rng.integers(0, 256, (SIZES[writer], 28, 28), dtype=np.uint8)


def classes(writer: str) -> list[int]:
    return [(7 * int(writer[1]) + 11 * i) % 62 for i in range(SIZES[writer])]


def write_leaf(file: Path, rows: dict[str, slice]) -> None:
    """LEAF's JSON: pixels divided by 255, and writers without samples that are not named."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {"f1": {"x": [], "y": []}}
    for writer, own in rows.items():
        x = (pixels(writer)[own].reshape(-1, 784) / 255).tolist()
        data[writer] = {"x": x, "y": classes(writer)[own]}
    sizes = [len(data[writer]["y"]) for writer in rows]
    content = {"users": list(rows), "num_samples": sizes, "user_data": data}
    file.write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    everything = slice(None)
    folder = tmp_path / "femnist"
    write_leaf(
        folder / "all_data/all_data_0.json", dict.fromkeys(["f9", "f2"], everything)
    )
    write_leaf(folder / "all_data/all_data_1.json", {"f5": everything})
    write_leaf(
        folder / "train/all_data_0_train_9.json", {"f9": slice(9), "f5": slice(3)}
    )
    write_leaf(folder / "test/all_data_0_test_9.json", {"f9": slice(9, 10)})
    write_leaf(folder / "test/all_data_1_test_9.json", {"f2": slice(1)})
    return folder


def of_user(dataset: Dataset, user: int) -> list[tuple[bytes, int]]:
    """The images and classes of one user, those for training first."""
    return [
        (part.x[i].tobytes(), int(part.y[i]))
        for part in (dataset.train, dataset.test)
        if part.users is not None
        for i in np.flatnonzero(part.users == user)
    ]


def written_by(writer: str) -> list[tuple[bytes, int]]:
    both = zip(pixels(writer), classes(writer), strict=True)
    return [(x.tobytes(), y) for x, y in both]


def test_a_share_of_each_writers_samples_is_for_testing(root: Path) -> None:
    dataset = Femnist().load()
    for user, writer in enumerate(["f2", "f5", "f9"]):
        found = of_user(dataset, user)
        assert sorted(found) == sorted(written_by(writer))
    train, test = dataset.train.users, dataset.test.users
    assert train is not None and test is not None
    assert np.bincount(train).tolist() == [1, 22, 9]
    assert np.bincount(test).tolist() == [0, 3, 1]
    assert dataset.train.x.shape == (32, 1, 28, 28) and dataset.num_classes == 62
    assert "".join(dataset.names[i] for i in (0, 9, 10, 35, 36, 61)) == "09AZaz"
    assert dataset.train.scale == 1 / 255

    half = Femnist(test=0.5).load()
    assert half.train.users is not None
    assert np.bincount(half.train.users).tolist() == [1, 12, 5]
    assert np.array_equal(half.test.x, Femnist(test=0.5).load().test.x)


def test_leafs_own_division_is_read_where_it_is_asked(root: Path) -> None:
    dataset = Femnist(test=None).load()
    assert of_user(dataset, 0) == written_by("f2")
    assert of_user(dataset, 1) == written_by("f5")[:3]
    assert of_user(dataset, 2) == written_by("f9")
    assert (len(dataset.train), len(dataset.test)) == (12, 2)


def test_each_writer_is_a_client_and_the_pixels_can_be_standardised(root: Path) -> None:
    data = fl.Federation(
        dataset=Femnist(standardise=True), clients=3, partition=ByUser()
    )
    dataset = data.load()
    split = data.split(dataset, seed=0)
    assert [len(own) for own in split.clients] == [1, 22, 9]
    inputs = dataset.train.x * dataset.train.scale + dataset.train.shift
    assert abs(inputs.mean()) < 1e-6 and abs(inputs.std() - 1) < 1e-6


def test_files_that_are_missing_or_not_leafs_are_named(root: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere/all_data holds no samples: make"):
        Femnist(path="nowhere").load()
    file = root / "all_data" / "all_data_1.json"
    wrong = []
    for shade in (0.5, 1.5, -1):  # no multiple of 1/255, too bright, too dark
        content = json.loads(file.read_text())
        content["user_data"]["f5"]["x"][0][0] = shade
        wrong.append(json.dumps(content))
    for text in (*wrong, "[]", '{"users": ["f5"]}', "{"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"all_data_1\.json is not a file of LEAF"):
            Femnist().load()
