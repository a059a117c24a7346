"""`raysafl.load`: the results of a sweep as tables of pandas."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raysafl.storage.ledger import Status
from raysafl.storage.paths import atomic_write, parse_location
from raysafl.storage.rows import sorted_rows
from raysafl.storage.runs_table import label_columns, make_runs_table
from raysafl.storage.store import RunResults, Store, sweeps_in

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from raysafl.report.analysis.method_statistics import MethodStatistics
    from raysafl.report.analysis.numbers import Study
    from raysafl.report.analysis.winner import Winner
    from raysafl.report.export import Only


def load(path: Any) -> "SweepResults":
    """Return the results of a sweep, which may still be running.

    Example:
        >>> import tempfile
        >>> import raysafl as fl
        >>> from raysafl.quickstart import BASE
        >>> folder = f"{tempfile.mkdtemp()}/brief"
        >>> sweep = fl.grid(BASE, {"rounds": [2, 3]}, seeds=1)
        >>> fl.Runner(sweep, folder, executor="here", track="none", quiet=True).run().ok
        True
        >>> rows = fl.load(folder).participation
        >>> sorted(rows.groupby("run_id")["round"].nunique())
        [2, 3]

    Args:
        path: the sweep's folder or URI; or what `Runner.run` returns.

    Raises:
        ValueError: it holds no sweep, or several.
    """
    where = getattr(path, "store", path)
    found = sweeps_in(where.path if isinstance(where, Store) else parse_location(where))
    if len(found) > 1:
        names = ", ".join(str(store.path) for store in found)
        raise ValueError(f"{path} holds {len(found)} sweeps; give one of them: {names}")
    return SweepResults(found[0])


@dataclass(frozen=True)
class SweepResults:
    """The tables of a sweep, without damaged runs and those that the sweep no longer has.

    All are read once, when the first is asked for; `load` again to see what is new. A
    kept model is returned by `raysafl.load_model`.

    Args:
        store: the sweep's folder.
    """

    store: Store

    @cached_property
    def _results(self) -> RunResults:
        return self.store.read()

    @property
    def best(self) -> "Winner":
        """The best run of those that have ended, as `Outcome.best` says it."""
        # Imported here, because it imports pandas.
        from raysafl.report.analysis.winner import best_of

        return best_of(self.runs, self.store.manifest())

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """A row for each run that has begun, and replicate: labels, status, statistics.

        One that has not ended is `running` or `waiting`, and has no statistics but
        the counts so far.
        """
        return make_runs_table(self.store, self._results)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """A row for each run, replicate and evaluated round, with what was measured.

        Like `clients` and `participation` it has the runs' labels, as `runs` has them.
        """
        return self._labelled(self._results.rows, "rounds")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """The metrics of each client; empty unless the runs have `eval_clients`."""
        return self._labelled(self._results.clients, "clients")

    @cached_property
    def participation(self) -> "pd.DataFrame":
        """A row for each run, replicate, round (evaluated or not) and client of its cohort.

        Its columns are run_id, the labels, replicate, round, client, enforced (whether
        the policy enforced the participation of all sampled clients) and trained (whether
        clients trained in it).
        """
        lists = ["cohorts", "enforced", "trained"]
        labels = label_columns(self.store.manifest())
        columns = ["run_id", *labels, "replicate", "round", *lists]
        each = self.rounds[columns].explode(lists)
        # The last cohort of a row is that of its round.
        each["round"] -= each.groupby(level=0).cumcount(ascending=False).astype("int32")
        # A round without participants has no client.
        rows = each.explode("cohorts").dropna(subset="cohorts").reset_index(drop=True)
        rows = rows.rename(columns={"cohorts": "client"})
        return rows.astype({"client": "int32", "enforced": "bool", "trained": "bool"})

    @cached_property
    def methods(self) -> "MethodStatistics":
        """How the methods compare over all settings, as tables of pandas.

        Raises:
            ValueError: there is no setting in which two methods or more have ended.
        """
        from raysafl.report.analysis.method_statistics import MethodStatistics

        found = MethodStatistics(self.runs, self.store.manifest())
        if len(found.methods) < 2:
            raise ValueError(
                f"{self.store.path} has no setting in which two methods or more have ended: "
                "methods are the labels of the axis 'algorithm' or 'method'"
            )
        return found

    @property
    def scores(self) -> "pd.DataFrame":
        """The table's statistic of each `setting`, `method` and `seed`, in the table's unit.

        Only settings count in which every method has a score. What diverged has an infinite
        one, worse than all others.
        """
        methods = self.methods
        scores = methods.rows[["setting", "method", "seed", "score"]]
        return scores.assign(score=methods.sign * scores["score"])

    def figure(
        self,
        name: str,
        only: "Only | None" = None,
        rename: Mapping[str, str] | None = None,
        width: float = 5.5,
    ) -> "Figure":
        """Draw a figure of the report at the size that it has in a paper.

        Args:
            name: `curves`, `heatmap`, `participation` ...
            only: for some axes, the labels that are shown, in their order.
            rename: new names for some labels and axes.
            width: inches, 5.5 as in NeurIPS and ICLR.

        Raises:
            ValueError: a name is unknown, which is told with the nearest one; no run that
                is shown has ended; or the sweep has no numbers for the figure.
        """
        from raysafl.report.export import draw
        from raysafl.report.figures.style import paper_style

        figure = draw(name, self._study(only, rename), paper_style(width))
        if figure is None:
            raise ValueError(
                f"{self.store.path} has no numbers for the figure '{name}'; "
                "`export` draws all that it has numbers for"
            )
        return figure

    def export(
        self,
        to: "str | Path",
        only: "Only | None" = None,
        rename: Mapping[str, str] | None = None,
        width: float = 5.5,
    ) -> "list[Path]":
        """Write `table.tex`, all figures as PDF, SVG and PNG, and their captions.

        Files that are there by other names stay.

        Args:
            to: the folder to write to.
            only: as for `figure`.
            rename: as for `figure`.
            width: as for `figure`.

        Returns:
            The files written.

        Raises:
            ValueError: a name is unknown, or no run that is shown has ended. Then nothing
                is written.
        """
        from raysafl.report.export import files_of
        from raysafl.report.figures.style import paper_style

        folder = parse_location(to)
        style = paper_style(width)
        made = files_of(self._study(only, rename), style)
        for name, content in made.items():
            atomic_write(folder / name, content)
        return [folder / name for name in made]

    def _study(self, only: "Only | None", rename: Mapping[str, str] | None) -> "Study":
        """Return what figures and table are made from."""
        from raysafl.report.analysis.numbers import Numbers, Study
        from raysafl.report.export import shown_sweep

        shown = shown_sweep(self.store.manifest(), only or {}, rename or {})
        # As in the report, what has not ended has no numbers yet.
        ended = [status for status in Status if not status.unended]
        ids = [entry.run_id for entry in shown.entries]
        runs = self.runs[
            self.runs["run_id"].isin(ids) & self.runs["status"].isin(ended)
        ]
        if runs.empty:
            raise ValueError(f"no run of {shown.name} that is shown has ended yet")
        rows = self._results
        return Study(Numbers.of(runs, shown), rows.rows, rows.clients)

    def _labelled(self, table: pa.Table, folder: str) -> "pd.DataFrame":
        """Return rows in order, with the labels of their runs after the run's id."""
        frame: pd.DataFrame = sorted_rows(table, folder).to_pandas()
        labels = label_columns(self.store.manifest()).items()
        for place, (column, of_run) in enumerate(labels, start=1):
            frame.insert(place, column, frame["run_id"].map(of_run))
        return frame
