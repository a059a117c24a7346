"""Puts the results of several folders of one sweep together, as of several machines."""

from collections.abc import Sequence
from functools import reduce

from raysafl.core.text import count
from raysafl.storage.ledger import CellEnd
from raysafl.storage.manifest import Entry, Label, Manifest, run_name
from raysafl.storage.rows import of_cells
from raysafl.storage.store import Store

# What two runs may differ in that become one.
EXTENT = {"seed": None, "replicates": None}


def merge(stores: Sequence[Store], into: Store) -> str:
    """Write the ended cells of several folders into a new one, with kept models and states.

    A cell that several folders have is taken from the first one in which it needs no other
    attempt: its rows follow from its configuration and its seed.

    Args:
        stores: the folders, whose writers are kept out by the caller.
        into: the new folder.

    Returns:
        How many cells the new folder holds, and what was left out, as text.

    Raises:
        ValueError: the folders hold different sweeps, or the new folder holds a sweep
            already. Nothing was written.
    """
    if into.file("manifest.json").is_file():
        raise ValueError(
            f"{into.path} holds a sweep already; choose a new folder (--out)"
        )
    manifest = _merged_manifest(stores)
    taken: dict[str, CellEnd] = {}
    into.create()
    with into.lock():
        for store in stores:
            found = store.results()
            new = {
                cell: end
                for cell, end in found.ends.items()
                if end.status.decided and cell not in taken
            }
            into.take(
                list(new.values()),
                of_cells(found.rows, new),
                of_cells(found.clients, new),
                {c: store.model(c).read_bytes() for c, end in new.items() if end.kept},
                {
                    c: store.state(c).read_bytes()
                    for c in new
                    if store.checkpoint(store.state(c))
                },
            )
            taken |= new
        into.rewrite()
        # The folder is that of a sweep when all is there.
        into.write_manifest(manifest)
    known = {cell for entry in manifest.entries for cell in entry.cells}
    missing = count(len(known - taken.keys()), "cell")
    return (
        f"{count(len(taken), 'cell')}; {missing} of the sweep are still to be computed"
    )


def _merged_manifest(stores: Sequence[Store]) -> Manifest:
    """Return the manifest of all runs.

    Raises:
        ValueError: the manifests are of different sweeps.
    """
    merged, *others = [store.manifest() for store in stores]
    for store, other in zip(stores[1:], others, strict=True):
        for what in ("name", "scale", "axes"):
            ours = getattr(merged, what)
            theirs = getattr(other, what)
            if ours != theirs:
                raise ValueError(
                    f"{stores[0].path} and {store.path} hold different sweeps: the {what} "
                    f"{'are' if what == 'axes' else 'is'} {ours!r} in one and {theirs!r} in "
                    "the other; merge folders of one sweep"
                )
        merged = merged.measuring(other.columns, merged.quality)
    runs: dict[tuple[Label, ...], list[Entry]] = {}
    for manifest in [merged, *others]:
        for entry in manifest.entries:
            runs.setdefault(entry.key(merged.axes), []).append(entry)
    ordered = (
        sorted(own, key=lambda entry: entry.seeds.start) for own in runs.values()
    )
    return merged.replace(entries=[reduce(_united, own) for own in ordered])


def _united(first: Entry, second: Entry) -> Entry:
    """Return a run with the seeds of two runs that have equal labels, and those between them.

    Args:
        first: the run that has the lowest seed.
        second: the other one.

    Raises:
        ValueError: they differ in more than their seeds.
    """
    labels = run_name(first.labels, first.run_id)
    if {**first.config, **EXTENT} != {**second.config, **EXTENT}:
        raise ValueError(
            f"the folders have different runs for {labels}, with other settings or another "
            "number of rounds; merge folders of one sweep"
        )
    last = max(first.seeds.stop, second.seeds.stop)
    config = {**first.config, "replicates": last - first.seeds.start}
    return Entry(run_id=first.run_id, labels=first.labels, config=config)
