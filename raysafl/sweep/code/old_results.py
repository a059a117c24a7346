"""Finds stored results that other code has made than today's, and says what to do."""

from collections.abc import Callable, Mapping, Set

from raysafl.core.text import first_of, were
from raysafl.simulation.run import Run
from raysafl.storage.checkpoint import OpenCell
from raysafl.storage.journal import Results
from raysafl.storage.ledger import CellEnd
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
            them: then all count.
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
    ended = {cell: end for cell, end in found.ends.items() if end.status.decided}
    makers: dict[str, CellEnd | OpenCell] = {**found.going_on.cells, **ended}
    if cells:
        makers = {cell: maker for cell, maker in makers.items() if cell in cells}
    entry_of = {cell: entry for entry in known.entries for cell in entry.cells}
    changes = {}
    for cell, maker in makers.items():
        today: Mapping[str, str]
        if cell in cells:
            today = digests.of_run(cells[cell])
        elif cell in ended:
            today = _todays_code(entry_of.get(cell), digests)
        else:
            # It is compared when the search algorithm asks for it again.
            today = maker.code
        if names := changed_classes(maker.code, today):
            changes[cell] = names
    mine = changes.keys() & chosen if cells else set(changes)
    again = mine if stale is Stale.RERUN else mine - ended.keys()
    kept = (changes.keys() & ended.keys()) - again

    def text(some: Set[str]) -> str:
        """Say which classes have changed, and name the first runs that they made."""
        classes = sorted({name for cell in some for name in changes[cell]})
        # In the order of the sweep.
        ordered = [
            cell for cell in dict.fromkeys([*entry_of, *changes]) if cell in some
        ]
        named = dict.fromkeys(
            run_name(entry_of[cell].labels, entry_of[cell].run_id)
            if cell in entry_of
            else cell
            for cell in ordered
        )
        return (
            f"the code of {', '.join(classes)} has changed since {were(len(named))} computed: "
            f"{first_of(list(named), MOST_NAMED, '; ')}"
        )

    if mine and stale is Stale.FAIL:
        raise ValueError(f"{text(mine)}. {CHOICES}")
    if again:
        say(f"{text(again)}. They are run again from the first round")
    if kept:
        say(f"{text(kept)}. Their results are kept")
    others = {
        cell: maker.raysafl
        for cell, maker in makers.items()
        if cell not in changes and maker.raysafl not in ("", __version__)
    }
    if others:
        versions = ", ".join(sorted(set(others.values())))
        runs = {entry_of[cell].run_id if cell in entry_of else cell for cell in others}
        say(
            f"{were(len(runs))} computed with raysafl {versions}, and this is raysafl "
            f"{__version__}. Results are kept; resume=False (--no-resume) runs all again"
        )
    return again


def _todays_code(entry: Entry | None, digests: CodeDigests) -> Mapping[str, str]:
    """Return the digests today of a run that a search algorithm asked for before.

    It has none if its configuration names a class that is not defined any more.
    """
    try:
        return digests.of_run(Run.model_validate(entry.config if entry else {}))
    except ValueError:
        return {}
