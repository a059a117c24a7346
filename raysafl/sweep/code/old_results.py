"""Finds stored results that other code has made than today's, and says what to do."""

from collections.abc import Callable, Mapping, Set

from raysafl.core.text import first_of, were
from raysafl.simulation.run import Run
from raysafl.storage.journal import Results
from raysafl.storage.ledger import CellEnd, HowFar
from raysafl.storage.manifest import Entry, Manifest, run_name
from raysafl.sweep.choices import Stale
from raysafl.sweep.code.digest import CodeDigests, changed_classes
from raysafl.version import __version__

# How many runs a message names.
MOST_NAMED = 3
CHOICES = (
    "Choose what becomes of them: stale='rerun' (--stale rerun) runs them again; 'keep' "
    "keeps the results of those that have ended and begins the others anew; 'fail', the "
    "default, changes nothing"
)


def cells_to_forget(
    found: Results,
    cells: Mapping[str, Run],
    known: Manifest,
    digests: CodeDigests,
    stale: Stale,
    chosen: Set[str],
    say: Callable[[str], None],
) -> set[str]:
    """Return the cells whose results or checkpoints may not be used, as code has changed.

    Args:
        found: what the folder holds.
        cells: the cells of the sweep, as runs of one seed each, by id. Others are in no table,
            so that nothing is said of them. There are none if a search algorithm asks for
            them: then those of known runs count.
        known: the runs of the sweep, and those that the folder had before.
        digests: computes the digests of the user's classes.
        stale: what the user has chosen.
        chosen: the cells that the user has chosen. The results of others are kept, and
            named.
        say: takes a message for the user.

    Raises:
        ValueError: the code of chosen cells has changed, and the user has not said what
            becomes of them.
    """
    entry_of = {cell: entry for entry in known.entries for cell in entry.cells}
    ended = {cell: end for cell, end in found.ends.items() if end.status.decided}
    every: dict[str, CellEnd | HowFar] = {**found.going_on.cells, **ended}
    makers = {c: maker for c, maker in every.items() if c in (cells or entry_of)}
    changes = {}
    today: Mapping[str, str]
    for cell, maker in makers.items():
        if cell in cells:
            today = digests.of_run(cells[cell])
        else:
            # Of a search. What has not ended is compared when it is asked for again.
            is_ended = cell in ended
            today = _todays_code(entry_of[cell], digests) if is_ended else maker.code
        if names := changed_classes(maker.code, today):
            changes[cell] = names
    mine = changes.keys() & (chosen if cells else changes.keys())
    again = mine if stale is Stale.RERUN else mine - ended.keys()
    kept = (changes.keys() & ended.keys()) - again

    def text(some: Set[str]) -> str:
        """Say which classes have changed, and name the first runs that they made."""
        classes = sorted({name for cell in some for name in changes[cell]})
        runs = _runs_of(some, known)
        return (
            f"the code of {', '.join(classes)} has changed since {were(len(runs))} computed: "
            f"{first_of(runs, MOST_NAMED, '; ')}"
        )

    if mine and stale is Stale.FAIL:
        raise ValueError(f"{text(mine)}. {CHOICES}")
    if again:
        say(f"{text(again)}. They are run again from the first round")
    if kept:
        say(f"{text(kept)}. Their results are kept")
    _say_versions({c: m for c, m in makers.items() if c not in changes}, known, say)
    return set(again)


def _runs_of(cells: Set[str], known: Manifest) -> list[str]:
    """Return the names of the runs that have some cells, in the order of the sweep."""
    return [
        run_name(entry.labels, entry.run_id)
        for entry in known.entries
        if not cells.isdisjoint(entry.cells)
    ]


def _say_versions(
    makers: Mapping[str, CellEnd | HowFar],
    known: Manifest,
    say: Callable[[str], None],
) -> None:
    """Say which cells another version of raysafl has computed, if any."""
    versions = {cell: own.raysafl for cell, own in makers.items()}
    others = {c: v for c, v in versions.items() if v not in ("", __version__)}
    if others:
        say(
            f"{were(len(_runs_of(others.keys(), known)))} computed with raysafl "
            f"{', '.join(sorted({*others.values()}))}, and this is raysafl {__version__}. "
            "Results are kept; resume=False (--no-resume) runs all again"
        )


def _todays_code(entry: Entry, digests: CodeDigests) -> Mapping[str, str]:
    """Return the digests today of a run that a search algorithm asked for before.

    It has none if its configuration names a class that is not defined any more.
    """
    try:
        return digests.of_run(Run.model_validate(entry.config))
    except ValueError:
        return {}
