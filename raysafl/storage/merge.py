"""Puts the results of several folders of one sweep together, as of several machines."""

from collections.abc import Mapping, Sequence, Set

from raysafl.core.text import count
from raysafl.storage.files import atomic_write
from raysafl.storage.integrity import row_sums
from raysafl.storage.journal import Checked
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.manifest import Manifest
from raysafl.storage.rows import of_runs
from raysafl.storage.store import Store

# In what the software and the devices may differ that computed a run.
ORIGIN = ("raysafl", "numpy", "torch", "device", "engine", "commit")


def merge(stores: Sequence[Store], into: Store) -> str:
    """Write the ended runs of several folders into a new one, with kept models and states.

    Args:
        stores: the folders, whose writers are kept out by the caller.
        into: the new folder.

    Returns:
        How many runs the new folder holds, and what was left out, as text.

    Raises:
        ValueError: the folders hold different sweeps, or a run whose rows differ; or the
            new folder holds a sweep already. Nothing was written.
    """
    if into.file("manifest.json").is_file():
        raise ValueError(
            f"{into.path} holds a sweep already; choose a new folder (--out)"
        )
    manifest = _merged_manifest([store.manifest() for store in stores], stores)
    found = [store.read(unended=False) for store in stores]
    # Rows are compared without the time that they took.
    sums = [
        (row_sums(own.rows.drop_columns("seconds")), row_sums(own.clients))
        for own in found
    ]
    owner: dict[str, int] = {}
    twice = set()
    for k, checked in enumerate(found):
        for run_id in checked.ledger.keys() - checked.faults.keys():
            first = owner.setdefault(run_id, k)
            ends = [found[j].ledger[run_id].status.decided for j in (first, k)]
            if first != k and all(ends):
                twice.add(run_id)
                if any(
                    own.get(run_id) != other.get(run_id)
                    for own, other in zip(sums[first], sums[k], strict=True)
                ):
                    raise ValueError(_contradiction(run_id, stores[first], stores[k]))
            elif ends == [False, True]:
                owner[run_id] = k
    into.create()
    with into.lock():
        for k, (store, checked) in enumerate(zip(stores, found, strict=True)):
            ids = {run_id for run_id, own in owner.items() if own == k}
            _copy(store, checked, into, ids)
        into.compact()
        # The folder is that of a sweep when all is there.
        into.write_manifest(manifest)
    damaged = {i for checked in found for i in checked.faults} - owner.keys()
    unended = {i for store in stores for i in store.open_runs()} - owner.keys()
    told = [
        count(len(owner), "run"),
        f"{len(twice)} in several folders, with equal rows" if twice else "",
        f"{count(len(damaged), 'damaged run')} left out" if damaged else "",
        f"{count(len(unended), 'run')} without an end left out" if unended else "",
    ]
    return "; ".join(filter(None, told))


def _contradiction(run_id: str, one: Store, other: Store) -> str:
    """Say that two folders have different rows of a run, and what may be why."""
    entries = [store.ledger()[run_id] for store in (one, other)]
    unlike = ", ".join(
        f"{name} {getattr(entries[0], name)} and {getattr(entries[1], name)}"
        for name in ORIGIN
        if getattr(entries[0], name) != getattr(entries[1], name)
    )
    return (
        f"run {run_id} has other rows in {one.path} than in {other.path}"
        f"{f' ({unlike})' if unlike else ''}; run it again in the folder that is "
        "wrong, with --no-resume and its labels (--only)"
    )


def _merged_manifest(
    manifests: Sequence[Manifest], stores: Sequence[Store]
) -> Manifest:
    """Return the manifest of all runs.

    Raises:
        ValueError: the manifests are of different sweeps.
    """
    merged, *others = manifests
    for store, other in zip(stores[1:], others, strict=True):
        for what in ("name", "scale", "axes"):
            own = getattr(merged, what)
            theirs = getattr(other, what)
            if own != theirs:
                raise ValueError(
                    f"{stores[0].path} and {store.path} hold different sweeps: the {what} "
                    f"{'are' if what == 'axes' else 'is'} {own!r} in one and {theirs!r} in "
                    "the other; merge folders of one sweep"
                )
        merged = merged.extended(other.entries)
        merged = merged.measuring(other.columns, merged.quality)
    _refuse_one_label_of_two_runs(manifests)
    return merged


def _refuse_one_label_of_two_runs(manifests: Sequence[Manifest]) -> None:
    """Check that folders have the same runs where labels are equal: tables show one of them.

    Raises:
        ValueError: two folders have different runs with equal labels.
    """
    runs: dict[tuple[object, ...], str] = {}
    for manifest in manifests:
        # A sampled sweep may have several runs with equal labels; the last one stands for them.
        own = {entry.key(manifest.axes): entry.run_id for entry in manifest.entries}
        for labels, run_id in own.items():
            first = runs.setdefault(labels, run_id)
            if first != run_id:
                named = ", ".join(map(str, labels))
                raise ValueError(
                    f"the folders have different runs for {named}: {first} and {run_id}, "
                    "perhaps with another number of seeds or rounds. A folder that has grown "
                    "holds what it grew from, so merge the grown ones alone"
                )


def _copy(store: Store, checked: Checked, into: Store, run_ids: Set[str]) -> None:
    """Copy ended runs with their rows and kept models, and the states that are missing."""
    pairs = [(store.model(run_id), into.model(run_id)) for run_id in run_ids]
    # The folder whose rows are taken may have kept no sound state where another one has.
    for run_id in checked.ledger.keys() - checked.faults.keys():
        new = into.state_file(run_id)
        is_missing = checked.ledger[run_id].status.decided and not new.is_file()
        if is_missing and _has_sound_state(store, run_id):
            pairs.append((store.state_file(run_id), new))
    for file, new in pairs:
        if file.is_file():
            atomic_write(new, file.read_bytes(), durable=True)
    if not run_ids:
        return
    entries: Mapping[str, LedgerEntry] = {i: checked.ledger[i] for i in run_ids}
    into.commit(
        of_runs(checked.rows, run_ids), entries, of_runs(checked.clients, run_ids)
    )


def _has_sound_state(store: Store, run_id: str) -> bool:
    try:
        return store.kept_state(run_id) is not None
    except ValueError:
        return False
