"""Reuses replicates that the folder holds, so that a study can grow.

A replicate follows from the configuration of its run and from its seed. How many others
the run has, and mostly how many rounds, is no part of that. So when a sweep asks for
more seeds or more rounds than before, its runs have other ids, but of each of them

- replicates that have been computed with as many rounds are reused as they are;
- replicates that have been computed with fewer rounds go on from the state in which they
  were, if it was kept (`Runner.keep_states`), or from the checkpoint of a run that has
  not ended;
- all others are computed.

A run that grows gets a file in `open/`, from which it goes on like any run that was
interrupted. Nothing is reused that other code has computed, or that would differ from
what the run computes by itself: learning rates may depend on the number of rounds, and
the last round is evaluated in any case.
"""

import datetime
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from raysafl.core.algorithm import LocalTraining
from raysafl.core.text import count
from raysafl.kept.content import KeptModels, owned_by, read_models
from raysafl.simulation.checkpoint import (
    Ended,
    SavedReplicate,
    assemble,
    mark_as_ended,
    replicates_in,
)
from raysafl.simulation.run import Run
from raysafl.storage.journal import TABLES
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.rows import SCHEMAS, joined
from raysafl.storage.sealed import OpenState
from raysafl.storage.store import Store
from raysafl.sweep.code.digest import CodeDigests, changed_classes
from raysafl.sweep.open_run import about_open

# The parts of a configuration that say which replicates there are and how long they go on.
EXTENT = ("replicates", "seed", "rounds")


@dataclass
class Growth:
    """What was reused of earlier runs.

    Args:
        runs: the number of runs that have grown.
        whole: the number of replicates that were reused as they are.
        continued: the number of replicates that go on from a state.
        rounds: the number of rounds that need not be run, of all replicates together.
        refused: why replicates could not be reused, and how many.
    """

    runs: int = 0
    whole: int = 0
    continued: int = 0
    rounds: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Say it in one line; empty if there is nothing to say."""
        parts = []
        if self.runs:
            parts.append(
                f"{count(self.runs, 'run')} of the sweep grew from stored ones"
            )
        if self.whole:
            parts.append(f"{count(self.whole, 'replicate')} reused")
        if self.continued:
            text = count(self.continued, "replicate")
            parts.append(f"{text} continued from where earlier runs were")
        for why, number in self.refused.items():
            text = count(number, "replicate")
            parts.append(f"{text} computed from the first round, because {why}")
        return "; ".join(parts)


class _EarlierRun(NamedTuple):
    """A run that the folder holds.

    Args:
        run_id: its id.
        entry: its ledger entry; what its file says of it, if it has not ended.
        ends: how each of its replicates has ended.
    """

    run_id: str
    entry: LedgerEntry
    ends: Sequence[ReplicateEnd | LedgerEntry]

    @property
    def rounds(self) -> int:
        """The number of rounds that it was to have."""
        return int(self.entry.config["rounds"])

    @property
    def has_ended(self) -> bool:
        """Whether all of its rounds were run, or it has diverged."""
        return not self.entry.status.unended


def reuse(
    store: Store,
    runs: Mapping[str, Run],
    begun: Set[str],
    known: Set[str],
    digests: CodeDigests,
    save: Callable[[str, OpenState], None],
) -> Growth:
    """Let runs begin with what other runs in the folder have computed of them.

    Args:
        store: the folder of the sweep.
        runs: the runs that are to be carried out, by id.
        begun: the ids of the runs that have begun and not ended.
        known: the ids of all runs of the sweep. What the folder holds of these is theirs.
        digests: computes the digests of the user's classes.
        save: takes from where a run goes on, by its id.
    """
    growth = Growth()
    sources = _stored_runs(store, known, begun) if runs else {}
    if not sources:
        return growth
    families = {i: _family(run.model_dump(mode="json")) for i, run in runs.items()}
    found = {
        run_id: sources[family]
        for run_id, family in families.items()
        if run_id not in begun and family in sources
    }
    if found:
        growing = _Growing(store, {s.run_id for own in found.values() for s in own})
        for run_id, own in found.items():
            run = runs[run_id]
            content = growing.begin(run, digests.of_run(run), own, growth)
            if content is not None:
                save(run_id, content)
    return growth


def _stored_runs(
    store: Store, known: Set[str], begun: Set[str]
) -> dict[str, list[_EarlierRun]]:
    """Return the runs of the folder that the sweep no longer has, by their families."""
    ledger = store.ledger()
    entries = {
        run_id: entry
        for run_id, entry in ledger.items()
        if entry.status in (Status.FINISHED, Status.DIVERGED)
    }
    for run_id in begun - ledger.keys() - known:
        about = store.about(run_id)
        entries[run_id] = LedgerEntry.unended(about, Status.INTERRUPTED)
    found: dict[str, list[_EarlierRun]] = {}
    for run_id, entry in entries.items():
        if entry.config and run_id not in known:
            source = _EarlierRun(run_id, entry, entry.ends())
            found.setdefault(_family(entry.config), []).append(source)
    return found


def _family(config: Mapping[str, Any]) -> str:
    """Return what runs have in common that differ in their replicates and rounds only."""
    common = {name: value for name, value in config.items() if name not in EXTENT}
    return json.dumps(common, sort_keys=True)


def _by_run(table: pa.Table) -> dict[str, pa.Table]:
    """Divide rows by their runs."""
    table = table.sort_by("run_id")
    names = table["run_id"].to_numpy()
    found, starts, counts = np.unique(names, return_index=True, return_counts=True)
    return {
        str(run_id): table.slice(start, number)
        for run_id, start, number in zip(found, starts, counts, strict=True)
    }


class _Growing:
    """Lets runs begin with replicates of others.

    Args:
        store: the folder of the sweep.
        run_ids: the others.
    """

    def __init__(self, store: Store, run_ids: Set[str]) -> None:
        self.store = store
        checked = store.read(run_ids)
        self._damaged = set(checked.faults)
        tables = map(_by_run, (checked.rows, checked.clients))
        self._tables = dict(zip(TABLES, tables, strict=True))
        # Replicates of one run are mostly asked for one after the other.
        self._states = lru_cache(maxsize=1)(self._read_states)
        self._models = lru_cache(maxsize=1)(self._read_models)

    def begin(
        self,
        run: Run,
        code: Mapping[str, str],
        sources: Sequence[_EarlierRun],
        growth: Growth,
    ) -> OpenState | None:
        """Reuse what can be, and return from where a run goes on, if that is anything.

        Args:
            run: the run.
            code: the digest of each of the user's classes in it.
            sources: the runs of its family.
            growth: is told what was reused.
        """
        usable = [
            source
            for source in sources
            if source.rounds <= run.rounds and source.run_id not in self._damaged
        ]
        # Of two runs with the same replicate, the one that is to have more rounds is tried
        # first; it mostly saves more.
        usable.sort(key=lambda own: (own.rounds, own.has_ended), reverse=True)
        saved: dict[int, SavedReplicate] = {}
        parts: dict[str, list[pa.Table]] = {folder: [] for folder in TABLES}
        grown_from: set[str] = set()
        spent = 0.0
        over = 0
        for r, seed in enumerate(run.seeds):
            found = self._of_seed(run, code, usable, seed, growth)
            if found is None:
                continue
            source, number, own = found
            saved[r] = own
            grown_from.add(source.run_id)
            for folder, tables in parts.items():
                rows = self._rows(folder, source.run_id, number)
                tables.append(_renamed(rows, run.id, r))
            spent += (source.entry.seconds or 0.0) / len(source.ends)
            is_whole = own.has_stopped or own.round >= run.rounds
            growth.whole += is_whole
            growth.continued += not is_whole
            over += run.rounds if is_whole else own.round
        if not saved:
            return None
        growth.runs += 1
        growth.rounds += over
        rounds, clients = (joined(tables, folder) for folder, tables in parts.items())
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        about = about_open(run, code, spent, now)
        about |= {"rounds_over": over, "over_before": over, "rows": len(rounds)}
        about |= {"grown_from": sorted(grown_from)}
        return OpenState(about, rounds, clients, assemble(run, saved))

    def _of_seed(
        self,
        run: Run,
        code: Mapping[str, str],
        sources: Sequence[_EarlierRun],
        seed: int,
        growth: Growth,
    ) -> tuple[_EarlierRun, int, SavedReplicate] | None:
        """Return the first source whose replicate of a seed can be reused, and that."""
        why = ""
        for source in sources:
            number = seed - source.entry.seeds.seed
            if 0 <= number < len(source.ends):
                saved = self._reusable(run, code, source, number)
                if isinstance(saved, SavedReplicate):
                    return source, number, saved
                why = why or saved
        if why:
            growth.refused[why] += 1
        return None

    def _reusable(
        self, run: Run, code: Mapping[str, str], source: _EarlierRun, number: int
    ) -> SavedReplicate | str:
        """Return what is saved of a replicate of another run, or why it is of no use."""
        if changed := changed_classes(source.entry.code, code):
            return f"the code of {', '.join(changed)} has changed since"
        is_longer = source.rounds != run.rounds
        if is_longer and _rates_differ(run, source.rounds):
            return "their learning rates depend on the number of rounds"
        end = source.ends[number]
        try:
            states = self._states(source.run_id, source.has_ended)
            saved = states[number] if states else None
        except ValueError as error:
            return str(error)
        if saved is None and source.has_ended and (end.reason or not is_longer):
            saved = self._ended(run, source, number, end)
        if saved is None and not source.has_ended:
            # The run was interrupted before this replicate began.
            return ""
        if saved is None or (is_longer and not saved.goes_on):
            return (
                f"the states after their {source.rounds} rounds were not kept "
                "(keep_states, --keep-states)"
            )
        is_at_end = saved.round == source.rounds
        if is_longer and is_at_end and not _is_evaluated_anyway(run, source.rounds):
            return (
                f"their last round, {source.rounds}, was evaluated only because it was the "
                "last"
            )
        return saved

    def _ended(
        self,
        run: Run,
        source: _EarlierRun,
        number: int,
        end: ReplicateEnd | LedgerEntry,
    ) -> SavedReplicate:
        """Return what is saved of a replicate that has ended, with the model that it kept."""
        own = self._rows("rounds", source.run_id, number)
        # It takes part in no further round, if it has stopped before or not.
        last = pc.max(own["round"]).as_py() if len(own) else -1
        is_diverged = end.status is Status.DIVERGED
        found = Ended(
            last + 1 if end.reason else run.rounds,
            diverged=end.reason if is_diverged else "",
            stopped="" if is_diverged else end.reason,
        )
        if source.entry.kept:
            about, tensors = self._models(source.run_id)
            for kept in about.replicates:
                if kept.replicate == number:
                    found = found._replace(kept_round=kept.round, kept_value=kept.value)
                    return mark_as_ended(found, owned_by(tensors, str(number)))
        return mark_as_ended(found)

    def _rows(self, folder: str, run_id: str, replicate: int) -> pa.Table:
        """Return the rows of a replicate in one of the two tables."""
        table = self._tables[folder].get(run_id, SCHEMAS[folder].empty_table())
        return table.filter(pc.equal(table["replicate"], replicate))

    def _read_states(self, run_id: str, has_ended: bool) -> list[SavedReplicate | None]:
        """Return the states of a run's replicates; none if they were not kept.

        Raises:
            ValueError: the file is damaged.
        """
        if has_ended:
            content = self.store.kept_state(run_id)
        else:
            found = self.store.resume(run_id)
            content = None if found is None else found.state
        return [] if content is None else replicates_in(content)

    def _read_models(self, run_id: str) -> tuple[KeptModels, dict[str, Tensor]]:
        return read_models(self.store.model(run_id).read_bytes())


def _rates_differ(run: Run, rounds: int) -> bool:
    """Whether learning rates would be others with another number of rounds."""
    parts = (p for p in run.components() if isinstance(p, LocalTraining))
    return any(part.over(rounds) != part.over(run.rounds) for part in parts)


def _is_evaluated_anyway(run: Run, rounds: int) -> bool:
    """Whether the last of some rounds is evaluated also where others follow."""
    clients = run.eval_clients
    return rounds % run.eval_every == 0 and (
        clients is None or rounds % clients.every == 0
    )


def _renamed(table: pa.Table, run_id: str, replicate: int) -> pa.Table:
    """Return rows as those of a replicate of another run."""
    for name, value in (("run_id", run_id), ("replicate", replicate)):
        place = table.schema.get_field_index(name)
        values = pa.array([value] * len(table), table.schema.field(place).type)
        table = table.set_column(place, name, values)
    return table
