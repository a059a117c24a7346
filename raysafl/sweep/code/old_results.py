"""Finds stored results that other code has made than today's, and says what to do."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from raysafl.core.text import first_of, were
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.manifest import run_name
from raysafl.storage.store import Store
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


def runs_to_forget(
    store: Store,
    ledger: Mapping[str, LedgerEntry],
    runs: Mapping[str, Run],
    digests: CodeDigests,
    stale: Stale,
    chosen: Collection[str],
    labels: Mapping[str, Mapping[str, Any]],
    say: Callable[[str], None],
) -> set[str]:
    """Return the runs whose results or checkpoints may not be used, as code has changed.

    Args:
        store: the folder of the sweep.
        ledger: the runs that have ended.
        runs: the runs of the sweep, by id. Others are in no table, so that nothing is said
            of them. There are none if a search algorithm asks for them: then all count.
        digests: computes the digests of the user's classes.
        stale: what the user has chosen.
        chosen: the runs that the user has chosen. The results of others are kept, and
            named.
        labels: the labels of the runs, by id.
        say: takes a message for the user.

    Raises:
        ValueError: the code of chosen runs has changed, and the user has not said what
            becomes of them.
    """
    ended = {i: entry for i, entry in ledger.items() if entry.status.decided}
    # The digests and the version of raysafl with which results or a checkpoint were made.
    makers = {i: (entry.code, entry.raysafl) for i, entry in ended.items()}
    # A damaged checkpoint is reported by whoever goes on from it.
    for run_id in sorted(set(store.open_runs()) - ended.keys()):
        about = store.about(run_id)
        makers[run_id] = about.get("code"), about.get("raysafl", "")
    if runs:
        makers = {i: maker for i, maker in makers.items() if i in runs}
    changes = {}
    for run_id, (code, _) in makers.items():
        today = _todays_code(run_id, code or {}, runs, ledger, digests)
        if names := changed_classes(code, today):
            changes[run_id] = names
    mine = set(changes) & set(chosen) if runs else set(changes)
    again = mine if stale is Stale.RERUN else mine - ended.keys()
    kept = (changes.keys() & ended.keys()) - again

    def text(run_ids: set[str]) -> str:
        """Say which classes have changed, and name the first runs that they made."""
        classes = sorted({name for i in run_ids for name in changes[i]})
        # In the order of the sweep.
        ordered = [i for i in dict.fromkeys([*labels, *changes]) if i in run_ids]
        named = [run_name(labels.get(i, {}), i) for i in ordered]
        return (
            f"the code of {', '.join(classes)} has changed since {were(len(named))} computed: "
            f"{first_of(named, MOST_NAMED, '; ')}"
        )

    if mine and stale is Stale.FAIL:
        raise ValueError(f"{text(mine)}. {CHOICES}")
    if again:
        say(f"{text(again)}. They are run again from the first round")
    if kept:
        say(f"{text(kept)}. Their results are kept")
    others = [
        version
        for run_id, (_, version) in makers.items()
        if run_id not in changes and version not in ("", __version__)
    ]
    if others:
        versions = ", ".join(sorted(set(others)))
        say(
            f"{were(len(others))} computed with raysafl {versions}, and this is raysafl "
            f"{__version__}. Results are kept; resume=False (--no-resume) runs all again"
        )
    return again


def _todays_code(
    run_id: str,
    stored: Mapping[str, str],
    runs: Mapping[str, Run],
    ledger: Mapping[str, LedgerEntry],
    digests: CodeDigests,
) -> Mapping[str, str]:
    """Return a run's digests today.

    A run that a search algorithm asked for is not among `runs`. If it has ended, it is made
    again from its configuration in the ledger; it has no digests today if that names a class
    that is not defined any more. If it has not ended, its stored digests are returned: they
    are compared when it is asked for again.
    """
    if run_id in runs:
        return digests.of_run(runs[run_id])
    if run_id not in ledger:
        return stored
    try:
        return digests.of_run(Run.model_validate(ledger[run_id].config))
    except ValueError:
        return {}
