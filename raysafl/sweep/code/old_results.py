"""Finds stored results that other code has made than today's, and says what to do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.store import Store
from raysafl.sweep.code.digest import CodeDigests
from raysafl.sweep.code.stale import Stale, changed_classes
from raysafl.version import __version__

# How many runs a message names.
MOST_NAMED = 3
CHOICES = (
    "Choose what becomes of them: --stale rerun runs them again; --stale keep keeps the "
    "results of those that have ended and begins the others anew; --stale fail, the "
    "default, changes nothing"
)
# From a run's id and its stored digests to its digests today.
CodeOf = Callable[[str, Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True)
class Maker:
    """What made a run's results, or its checkpoint.

    Args:
        ended: whether the run has ended and needs no further attempt.
        code: the digest of each class of the user, by name; None if it is not known.
        version: the version of raysafl; empty if it is not known.
    """

    ended: bool
    code: Mapping[str, str] | None
    version: str


def stored_makers(store: Store, ledger: Mapping[str, LedgerEntry]) -> dict[str, Maker]:
    """Return what made the results of each run that has ended or has a checkpoint."""
    makers = {
        run_id: Maker(True, entry.code, entry.raysafl)
        for run_id, entry in ledger.items()
        if entry.status.decided
    }
    # A damaged checkpoint is reported by whoever goes on from it.
    for run_id in store.open_runs():
        if run_id not in makers:
            about = store.about(run_id)
            makers[run_id] = Maker(False, about.get("code"), about.get("raysafl", ""))
    return makers


def todays_code(
    runs: Mapping[str, Run], ledger: Mapping[str, LedgerEntry], digests: CodeDigests
) -> CodeOf:
    """Return a function from a run's id and stored digests to its digests today.

    A run that a search algorithm asked for is not among `runs`. If it has ended, it is made
    again from its configuration in the ledger; it has no digests today if that names a class
    that is not defined any more. If it has not ended, its stored digests are returned: they
    are compared when it is asked for again.

    Args:
        runs: the runs of the sweep, as far as they are known, by id.
        ledger: the runs that have ended.
        digests: computes the digests.
    """

    def today(run_id: str, stored: Mapping[str, str]) -> Mapping[str, str]:
        if run_id in runs:
            return digests.of_run(runs[run_id])
        if run_id not in ledger:
            return stored
        try:
            return digests.of_run(Run.model_validate(ledger[run_id].config))
        except ValueError:
            return {}

    return today


def runs_to_forget(
    makers: Mapping[str, Maker],
    code_of: CodeOf,
    stale: Stale,
    chosen: Iterable[str] | None,
    labels: Mapping[str, Mapping[str, Any]],
    say: Callable[[str], None],
) -> set[str]:
    """Return the runs whose results or checkpoints may not be used, as code has changed.

    Args:
        makers: what made the stored results.
        code_of: from `todays_code`.
        stale: what the user has chosen.
        chosen: the runs that the user has chosen; None for all. The results of others
            are kept, and named.
        labels: the labels of the runs, by id.
        say: takes a message for the user.

    Raises:
        ValueError: the code of chosen runs has changed, and the user has not said what
            becomes of them.
    """
    changes = {
        run_id: names
        for run_id, maker in makers.items()
        if (names := changed_classes(maker.code, code_of(run_id, maker.code or {})))
    }
    mine = set(changes) if chosen is None else set(changes) & set(chosen)
    begun = {run_id for run_id in mine if not makers[run_id].ended}
    again = mine if stale is Stale.RERUN else begun
    kept = {run_id for run_id in changes if makers[run_id].ended} - again

    def text(run_ids: set[str]) -> str:
        # In the order of the sweep.
        ordered = (i for i in dict.fromkeys([*labels, *changes]) if i in run_ids)
        return changes_text({i: changes[i] for i in ordered}, labels)

    if mine and stale is Stale.FAIL:
        raise ValueError(f"{text(mine)}. {CHOICES}")
    if again:
        say(f"{text(again)}. They are run again from the first round")
    if kept:
        say(f"{text(kept)}. Their results are kept")
    others = [
        maker.version
        for run_id, maker in makers.items()
        if run_id not in changes and maker.version not in ("", __version__)
    ]
    if others:
        versions = ", ".join(sorted(set(others)))
        say(
            f"{_were(len(others))} computed with raysafl {versions}, and this is raysafl "
            f"{__version__}. Results are kept; --no-resume runs everything again"
        )
    return again


def changes_text(
    changes: Mapping[str, list[str]], labels: Mapping[str, Mapping[str, Any]]
) -> str:
    """Say which classes have changed, and name the first runs that they made.

    Args:
        changes: the classes that have changed, by run id.
        labels: the labels of the runs, by id.
    """
    classes = sorted({name for names in changes.values() for name in names})
    named = [
        ", ".join(f"{axis}={label}" for axis, label in labels.get(i, {}).items()) or i
        for i in changes
    ]
    shown = named[:MOST_NAMED]
    if len(named) > MOST_NAMED:
        shown.append(f"and {len(named) - MOST_NAMED} more")
    return (
        f"the code of {', '.join(classes)} has changed since {_were(len(named))} computed: "
        f"{'; '.join(shown)}"
    )


def _were(count: int) -> str:
    return "1 run was" if count == 1 else f"{count} runs were"
