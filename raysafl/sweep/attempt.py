"""One attempt at a sweep: what is to be done, and what is written in the end.

What carries out runs is imported only if there are any to do (`raysafl.sweep.new_runs`).
"""

import time
from contextlib import ExitStack, closing

from raysafl.report.current import is_current
from raysafl.simulation.run import Run
from raysafl.storage.ledger import CellEnd
from raysafl.storage.manifest import Manifest, run_name
from raysafl.storage.paths import explain_full_disk, pushed
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import remove_empty
from raysafl.sweep.choices import Stale
from raysafl.sweep.code import CodeDigests, cells_to_forget
from raysafl.sweep.grid import known_runs
from raysafl.sweep.outcome import Outcome
from raysafl.sweep.progress import choose_display
from raysafl.sweep.runner import Runner, command_of_script, part_of


class Attempt:
    """Carries out what an earlier attempt has not ended, and writes the report.

    Args:
        options: what was asked for, and was checked.

    Raises:
        ValueError: a run of the sweep cannot be made, or no run was chosen.
    """

    def __init__(self, options: Runner) -> None:
        self.options = options
        self.sweep = options.sweep
        self.store = options.store
        self.digests = CodeDigests()
        known, self.runs, self.example = known_runs(self.sweep)
        self.manifest = known.replace(command=options.command or command_of_script())
        only = {axis: str(label) for axis, label in options.only.items()}
        self.chosen = self.manifest.select(only)
        if options.shard is not None:
            part, parts = part_of(options.shard)
            self.chosen = [i for i in self.chosen if int(i, 16) % parts == part - 1]
        # The manifest that was in the folder before, or None.
        self.earlier: Manifest | None = None
        # The cells whose results are deleted; None for all results.
        self.forgotten: set[str] | None = None
        # How the cells ended that need no new attempt.
        self.ended: dict[str, CellEnd] = {}
        # The cells to do of each run, as runs of one seed each, by the run's id.
        self.todo: dict[str, list[Run]] = {}
        self.display = choose_display(options.console, options.quiet)

    @property
    def unended(self) -> list[str]:
        """The ids of the chosen runs that have cells to do, or share them with others."""
        ended = self.ended.keys()
        return [i for i in self.chosen if not ended >= set(self.runs[i].cell_ids)]

    @property
    def looked_at(self) -> dict[str, Run]:
        """The runs to do, by id, or the one that stands for those of a search."""
        return self.example or {i: self.runs[i] for i in self.todo}

    @property
    def seeds_there(self) -> str:
        """How many seeds of the runs to do have ended before, in words; empty if none has."""
        cells = {cell for run_id in self.todo for cell in self.runs[run_id].cell_ids}
        there = len(cells & self.ended.keys())
        return f"{there} of their {len(cells)} seeds are there" if there else ""

    def run(self) -> Outcome:
        """Run the sweep, and write its table and its report; see `Runner.run`."""
        began = time.monotonic()
        store = self.store
        made = store.create()
        with (
            closing(self.display),
            explain_full_disk(store.path),
            pushed(store.path, self.options.note),
            store.lock(),
            ExitStack() as refusal,
        ):
            refusal.callback(remove_empty, made)
            self.plan()
            if self.todo or self.sweep.is_searched:
                from raysafl.sweep.new_runs import carry_out

                carry_out(self, refusal)
            else:
                self.begin(refusal)
                if self.options.tracking_uri:
                    self.options.note(
                        "no run is left to do, and so nothing was logged to MLflow: "
                        "`raysafl sync` logs what is there"
                    )
            # The table or the notes may have been edited, or an earlier driver was killed
            # before it wrote the report.
            if not is_current(store):
                # Imported here, because it draws figures: its import takes seconds.
                from raysafl.report.write import write_report

                self.display.enter("writing the report")
                write_runs_table(store)
                write_report(store)
            over = store.ledger().keys()
            new = self.unended
            missing = sum(not over >= set(self.runs[i].cell_ids) for i in self.chosen)
            if self.sweep.is_searched:
                new = [entry.run_id for entry in store.manifest().entries]
                display = self.display
                missing = display.total - display.done if display.is_cut else 0
            return Outcome(
                store=store,
                manifest=store.manifest(),
                runs=store.runs(),
                skipped=len(self.chosen) - len(self.unended),
                missing=missing,
                seconds=time.monotonic() - began,
                shown=frozenset(() if self.options.quiet else new),
            )

    def begin(self, refusal: ExitStack) -> None:
        """Delete what is not kept, and write the manifest.

        Args:
            refusal: what is undone if the attempt is refused, which it no longer is.
        """
        refusal.pop_all()
        self.store.forget(self.forgotten)
        # Those that failed are computed again. Their checkpoints stay.
        todo = {cell.id for cells in self.todo.values() for cell in cells}
        if again := todo & self.store.ledger().keys():
            self.store.rewrite(again)
        self.store.tidy()
        manifest = self.manifest
        if self.earlier and self.sweep.is_searched and self.options.resume:
            # Runs of which no seed has ended are in it again if they are asked for again.
            ended = self.store.ledger().keys()
            there = [e for e in self.earlier.entries if not ended.isdisjoint(e.cells)]
            manifest = manifest.extended(there)
            manifest = manifest.measuring(self.earlier.columns, self.earlier.quality)
        self.store.write_manifest(manifest)

    def plan(self) -> None:
        """Find out which runs this attempt does, and which results it forgets.

        Raises:
            ValueError: the folder holds another sweep; or there are runs of other code,
                and `stale` is `fail`.
        """
        stale = Stale(self.options.stale)
        self._read_earlier_manifest()
        if self.options.resume:
            self._plan_to_go_on(stale)
        elif not self.sweep.is_searched:
            self.forgotten = {c for i in self.chosen for c in self.runs[i].cell_ids}
        claimed = set(self.ended)
        for run_id in self.chosen:
            cells = [c for c in self.runs[run_id].split() if c.id not in claimed]
            claimed |= {cell.id for cell in cells}
            if cells:
                self.todo[run_id] = cells

    def _plan_to_go_on(self, stale: Stale) -> None:
        """Find out which results are kept, and which are forgotten."""
        found = self.store.results()
        known = self.manifest.extended(self.earlier.entries if self.earlier else [])
        names: dict[str, str] = {}
        for entry in known.entries:
            names |= dict.fromkeys(entry.cells, run_name(entry.labels, entry.run_id))
        cells = {c.id: c for run in self.runs.values() for c in run.split()}
        chosen = {c for i in self.chosen for c in self.runs[i].cell_ids}
        say = self.options.note
        old = cells_to_forget(found, cells, known, self.digests, stale, chosen, say)
        # A search asks for its runs later, and may ask for any of them.
        damaged = found.faults.keys() & (cells.keys() or found.faults.keys())
        for cell in sorted(damaged):
            say(f"{names.get(cell, cell)} is run again: {found.faults[cell]}")
        self.forgotten = {*damaged, *old}
        self.ended = {
            cell: end
            for cell, end in found.ends.items()
            if end.status.decided and cell not in old
        }

    def _read_earlier_manifest(self) -> None:
        """Read the manifest that is in the folder, if there is one.

        Raises:
            ValueError: the folder holds another sweep, or another scale of this one.
        """
        if not self.store.file("manifest.json").is_file():
            return
        try:
            there = self.store.manifest()
        except ValueError as error:
            self.options.note(f"{error}, and does so now")
            return
        name = self.manifest.name
        scale = self.manifest.scale
        if (there.name, there.scale) != (name, scale):
            raise ValueError(
                f"{self.store.path} holds sweep '{there.name}' at scale '{there.scale}', not "
                f"'{name}' at '{scale}'; choose another folder (out, --out)"
            )
        self.earlier = there
