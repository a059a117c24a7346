"""Which entry or run is best, which ones cannot be told apart from it, and how good it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from raysafl.report.analysis.entries import nested, partitions_of
from raysafl.report.analysis.evidence import paired_differences, t_quantile
from raysafl.report.analysis.layout import Layout
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest, Table
from raysafl.storage.statistics import declaration_of, quality_statistics


@dataclass(frozen=True)
class Marks:
    """The runs of a table that are marked, by their ids.

    Attributes:
        best: the runs that are bold.
        close: the runs with a dagger, which cannot be told apart from those.
    """

    best: frozenset[str] = frozenset()
    close: frozenset[str] = frozenset()


def marks_of(
    runs: pd.DataFrame, entries: pd.DataFrame, manifest: Manifest, layout: Layout
) -> Marks:
    """Return the runs with the best mean of each setting, and those that are close to it.

    A setting is a choice of all labels but that of the method. Means that are equal to twelve
    digits are all best. Runs are left out of which a replicate diverged or has no value.

    Args:
        runs: the rows of `runs.parquet`.
        entries: what `raysafl.report.analysis.entries.aggregate` makes of them.
        manifest: the sweep, whose table names the statistic.
        layout: the layout of its axes.
    """
    name = manifest.table.statistic
    others = [axis for axis in manifest.axes if axis != layout.method]
    compared = pd.DataFrame(
        {
            "run_id": entries["run_id"],
            "setting": [repr(entry.key(others)) for entry in manifest.entries],
            "score": manifest.sign * entries[f"mean.{name}"].astype(float),
        }
    )
    is_whole = ~entries[["diverged", "without"]].any(axis=1)
    compared = compared[is_whole].dropna(subset="score")
    compared["score"] = compared["score"].map("{:.12g}".format).astype(float)
    compared = compared.sort_values("score", ascending=False, kind="stable")
    top = compared.groupby("setting")["score"].transform("max")
    best = frozenset(compared["run_id"][compared["score"] == top])
    rankings = [list(ids) for _, ids in compared.groupby("setting")["run_id"]]
    done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
    return Marks(best, frozenset(close_to_first(rankings, done, manifest)) - best)


def close_to_first(
    rankings: Sequence[Sequence[str]], done: pd.DataFrame, manifest: Manifest
) -> list[str]:
    """Return the runs that cannot be told apart from the first one of their ranking.

    Two runs are told apart if the 95 % interval of their paired differences in the table's
    statistic does not hold 0, so never if they have fewer than two seeds in common. Once a
    run is told apart from the first, all those that are ranked below it are, too: a wide
    spread is no merit.

    Args:
        rankings: the ids of runs that are compared, the best ones first.
        done: the finished replicates.
        manifest: the sweep.
    """
    pairs = [(other, first) for first, *others in rankings for other in others]
    tested = paired_differences(pairs, done, manifest)
    # The interval has no width where all differences are equal.
    clear = tested.index[tested["diff"].abs() > tested["half"].fillna(0.0)]
    apart = {pairs[i] for i in clear}
    close = []
    for first, *others in rankings:
        for other in others:
            if (other, first) in apart:
                break
            close.append(other)
    return close


@dataclass(frozen=True)
class Winner:
    """The best run of a sweep. All numbers are means over its seeds, of the last round.

    Attributes:
        run_id: its id.
        labels: its labels; in a search, the values that were drawn for it.
        config: its configuration as JSON, which `Run.from_json` reads.
        metric: the column of `rounds/` that it was chosen by.
        mode: whether the `max` or the `min` of it is best.
        value: its value of it.
        interval: the 95 % interval of that, by Student's t; None with one seed. That of a
            fraction ends at 0 and 1.
        quality: the column by which runs are judged on the test set.
        test: its value of that.
        test_interval: the 95 % interval of that.
        seeds: how many replicates it has.
        candidates: how many runs it was chosen from: those of which all replicates have
            finished with a value.
        ranked: their ids, the best one first; of equal runs the first of the sweep.
        ties: the labels of the runs ranked next that cannot be told apart from it, by run
            id: the 95 % interval of their difference in `metric`, seed by seed, holds 0. The
            first one that is told apart ends them.
    """

    run_id: str
    labels: dict[str, Label]
    config: str = field(repr=False)
    metric: str
    mode: str
    value: float
    interval: tuple[float, float] | None
    quality: str
    test: float
    test_interval: tuple[float, float] | None
    seeds: int
    candidates: int
    ranked: list[str] = field(repr=False)
    ties: dict[str, dict[str, Label]]

    @property
    def is_held_out(self) -> bool:
        """Whether the test set had no part in the choice."""
        return not self.metric.startswith(("test_", "clients_"))


def best_of(runs: pd.DataFrame, manifest: Manifest) -> Winner:
    """Return the best run of a sweep, and raise a ValueError if `winner_of` finds none."""
    winner = winner_of(runs, manifest)
    if winner is None:
        metric = manifest.goal[0] if manifest.goal else judging(runs, manifest)
        raise ValueError(
            f"no run of sweep '{manifest.name}' has finished with all its seeds and a "
            f"value of `{metric}`, so that there is no best one; the columns `status` and "
            "`reason` of `runs` say why runs ended"
        )
    return winner


def winner_of(runs: pd.DataFrame, manifest: Manifest) -> Winner | None:
    """Return the best run of a sweep; None if of no run all replicates finished with a value.

    The choice goes by the last value of the sweep's goal, or without one of `judging`.
    """
    if runs.empty:
        return None
    is_done = runs["status"] == Status.FINISHED
    done = runs[is_done.groupby(runs["run_id"]).transform("all")]
    metric, mode = manifest.goal or (judging(done, manifest), "")
    declared = declaration_of(metric, manifest.columns)
    mode = mode or ("min" if declared and not declared.higher_is_better else "max")
    last = _in_last_round(done, metric)
    is_whole = last.notna().groupby(done["run_id"]).transform("all")
    values = last[is_whole].groupby(done["run_id"]).mean()
    labels = manifest.labels()
    # Equal runs stay in the order of the sweep, whatever their ids are.
    values = values.loc[[i for i in labels if i in values]]
    values = values.sort_values(ascending=mode == "min", kind="stable")
    if values.empty:
        return None
    ranked = list(map(str, values.index))
    run_id = ranked[0]
    own = done[done["run_id"] == run_id]
    table = Table(rows=[], statistic=quality_statistics(metric)[0], scale=1.0, unit="")
    ties = close_to_first([ranked], done, manifest.replace(table=table))
    return Winner(
        run_id=run_id,
        labels=labels[run_id],
        config=str(own["config"].iloc[0]),
        metric=metric,
        mode=mode,
        value=float(values[run_id]),
        interval=_interval_of(own, metric, manifest),
        quality=manifest.quality,
        test=float(_in_last_round(own, manifest.quality).mean()),
        test_interval=_interval_of(own, manifest.quality, manifest),
        seeds=len(own),
        candidates=len(ranked),
        ranked=ranked,
        ties={i: labels[i] for i in ties},
    )


def judging(runs: pd.DataFrame, manifest: Manifest) -> str:
    """Return the column by which the best is chosen, unless the sweep has a goal.

    It is that by which the runs are judged: on the validation samples if all finished
    runs have some, otherwise on the test set.
    """
    on_val = manifest.quality.replace("test_", "val_", 1)
    done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
    is_there = len(done) > 0 and _in_last_round(done, on_val).notna().all()
    return on_val if is_there else manifest.quality


def _in_last_round(done: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return the last value of a column of each replicate; NaN where it has none."""
    name = quality_statistics(column)[0]
    return done.reindex(columns=[name])[name].astype(float)


def _interval_of(
    own: pd.DataFrame, column: str, manifest: Manifest
) -> tuple[float, float] | None:
    """Return the interval of the mean last value of a run; None with one seed."""
    spread = nested(_in_last_round(own, column), own["run_id"], partitions_of(own))
    if spread.empty:
        return None
    mean = float(spread["mean"].iloc[0])
    error = float(spread["error"].iloc[0])
    half = error * float(t_quantile(spread["freedom"].to_numpy(float))[0])
    if not math.isfinite(half):
        return None
    declared = declaration_of(column, manifest.columns)
    # A mean of few seeds may be so near to 1 that Student's t, which knows no bounds,
    # gives more.
    least, most = (0, 1) if declared and declared.is_fraction else (-math.inf, math.inf)
    return max(least, mean - half), min(most, mean + half)
