"""Checks of a sweep's definition, before anything runs and before a file is written.

They raise ValueError, which says what was given, what is allowed and what to change.
They are for new sweeps only: a stored manifest is read without them, so that older
folders stay readable.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from raysafl.core.record import FURTHER_NAME
from raysafl.core.text import nearest
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Label, Table, method_axis
from raysafl.storage.statistics import OF_ACCURACY, known_statistics, statistics_of
from raysafl.sweep.measures import Measures

# A method of each part of Tune's that a sweep takes, and an example of the part.
PARTS_OF_TUNE = {
    "search_alg": ("suggest", "a Searcher of Tune's, such as OptunaSearch()"),
    "scheduler": (
        "on_trial_result",
        "a scheduler of Tune's, such as tune.schedulers.ASHAScheduler()",
    ),
}
# Tune's schedulers that give a run that has begun another configuration.
CHANGE_RUNS = {"PopulationBasedTraining", "PopulationBasedTrainingReplay"}
# What SAFARI's and FAST's papers call a field of ours.
PAPERS = {
    "q": ("client_prob", "snapshot_prob"),
    "lambda": ("adapt",),
    "server data size": ("n0",),
}
# The labels of one run, one for each axis.
Key = tuple[Label, ...]


def check_run(run: Any, where: str) -> Run:
    """Return the run.

    Args:
        run: what should be a run.
        where: where it was given, for the message.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(run, Run):
        raise ValueError(f"{where} is {_what_it_is(run)}; give a Run(...)")
    return run


def check_runs(runs: Any) -> None:
    """Refuse what is no list of runs, and no mapping from labels to runs."""
    if isinstance(runs, str) or not isinstance(runs, Mapping | Sequence):
        raise ValueError(
            f"runs is {_what_it_is(runs)}; give a list of runs, or a mapping from labels "
            "to runs"
        )
    pairs = runs.items() if isinstance(runs, Mapping) else enumerate(runs)
    for key, run in pairs:
        check_run(run, f"runs[{key!r}]")


def path_of(base: Run, field: str) -> str:
    """Return the dotted path of a field that is given by its path or by the end of it.

    Raises:
        ValueError: no component has it, or several have.
    """
    # Optional fields that are not given are not in `flat`.
    every = dict.fromkeys([*base.flat(), *type(base).model_fields])
    known = [path for path in every if path != "kind"]
    # What is inside a part that another axis replaces may not be in `base`.
    if "." in field or field in known:
        return field
    found = [path for path in known if path.rpartition(".")[2] == field]
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} components have a field '{field}'; give one of the dotted paths "
            f"{', '.join(found)}"
        )
    if not found:
        ends = {path.rpartition(".")[2] for path in known}
        fields = PAPERS.get(field.lower(), ())
        meant = " or ".join(f"'{own}'" for own in fields if own in ends)
        hint = f"did you mean {meant}?" if meant else nearest(field, ends)
        if fields and not meant:
            hint = f"the papers' name of {' or '.join(fields)}; {hint}"
        _, *parts = {type(part).__name__: None for part in base.components()}
        raise ValueError(
            f"neither the run nor its parts ({', '.join(parts)}) have a field '{field}': "
            f"{hint}"
        )
    return found[0]


def check_search(
    metric: str,
    mode: str,
    search_alg: Any,
    scheduler: Any,
    measures: Measures | None,
) -> None:
    """Refuse what Tune could not search or stop by.

    Args:
        metric: what the search algorithm and the scheduler go by; empty for the
            default.
        mode: whether they look for its maximum or its minimum; empty for the better
            of both.
        search_alg: Tune's search algorithm, or None.
        scheduler: Tune's scheduler, or None.
        measures: what the runs measure; None if they are only known when sampled.
    """
    for name, part in (("search_alg", search_alg), ("scheduler", scheduler)):
        method, example = PARTS_OF_TUNE[name]
        is_usable = hasattr(part, method) and not isinstance(part, type)
        if part is not None and not is_usable:
            raise ValueError(f"{name} is {_what_it_is(part)}; give {example}, or none")
    # Their names are looked for, since Ray takes seconds to import.
    if {base.__name__ for base in type(scheduler).__mro__} & CHANGE_RUNS:
        raise ValueError(
            f"the scheduler {type(scheduler).__name__} changes the configuration of runs that "
            "have begun, but a run has one configuration from its first round to its last; "
            "take a scheduler that stops runs, such as tune.schedulers.ASHAScheduler()"
        )
    metric_of_scheduler = getattr(scheduler, "metric", None)
    if metric_of_scheduler is not None:
        raise ValueError(
            f"the scheduler has the metric '{metric_of_scheduler}' already; make a new one "
            "without metric and mode, and give these to the sweep"
        )
    for column in (metric, getattr(search_alg, "metric", None)):
        if isinstance(column, str) and column:
            _check_metric(column, measures)
    if mode not in ("", "max", "min"):
        raise ValueError(f"mode is '{mode}'; give 'max' or 'min', or leave it out")


def _check_metric(name: str, measures: Measures | None) -> None:
    """Refuse a metric that no run reports to Tune."""
    known = (measures or Measures()).scalars
    # Of runs that are only known when sampled, any column may be one of theirs.
    possible = measures is None and FURTHER_NAME.fullmatch(name)
    if name not in known and not possible:
        raise ValueError(f"no run reports the metric '{name}': {nearest(name, known)}")


def check_labels(axes: Any, keys: Sequence[Key]) -> None:
    """Refuse axes that are no names, and labels that do not match them, or are given twice.

    Args:
        axes: the names of the axes.
        keys: the labels of each run on the axes; empty if the runs are only known when
            they have been sampled.
    """
    if isinstance(axes, str) or not all(isinstance(name, str) for name in axes):
        raise ValueError(
            f"axes is {_what_it_is(axes)}; give a tuple with one name per label, such as "
            "axes=('method', 's')"
        )
    _check_no_repeat(axes, "axes")
    for key in keys:
        if len(key) != len(axes):
            raise ValueError(
                f"label {key} has {len(key)} values, but the axes are {list(axes)}; give "
                "axes=(...) with one name per value"
            )
        for axis, label in zip(axes, key, strict=True):
            is_finite = not isinstance(label, float) or math.isfinite(label)
            if not isinstance(label, Label) or not is_finite:
                raise ValueError(
                    f"axis '{axis}' has the label {_what_it_is(label)}; a label is text, a "
                    "finite number, True, False or None; for components take "
                    "fl.grid(base, {...}), which labels them by their classes"
                )
    # Tables, `runs.parquet` and `--only` have the labels as text.
    _check_no_repeat([tuple(map(str, key)) for key in keys], "the labels of the runs")


def check_table(
    table: Table, axes: Sequence[str], keys: Sequence[Key], measures: Measures | None
) -> None:
    """Refuse a table with unknown axes, labels or statistics.

    Args:
        table: the table, with its rows or columns.
        axes: the names of the sweep's axes.
        keys: the labels of each run on them; empty if no run is known yet.
        measures: what the runs measure; None if that is not known yet.
    """
    used = {name: getattr(table, name) for name in ("rows", "columns", "panels")}
    used["lines"] = [table.lines] if table.lines else []
    for name, names in used.items():
        for axis in names:
            if axis not in axes:
                raise ValueError(
                    f"table: {name}: there is no axis '{axis}': {nearest(axis, axes)}"
                )
    _check_no_repeat([*table.rows, *table.columns], "table: rows and columns")
    if table.baseline != "" and keys:
        labels = dict(zip(axes, zip(*keys, strict=True), strict=True))
        axis = method_axis(labels, table)
        if axis and table.baseline not in labels[axis]:
            known = map(str, labels[axis])
            raise ValueError(
                f"table: baseline: no run has {axis}={table.baseline!r}: "
                f"{nearest(str(table.baseline), known)}"
            )
    if measures is None:
        return
    # What is not given follows from what the runs measure, and so does "final".
    if table.statistic != "final":
        _check_statistic(table.statistic, "table: statistic", measures)
    for name in table.also if "also" in table.model_fields_set else ():
        _check_statistic(name, "table: also", measures)


def _check_statistic(name: str, where: str, measures: Measures) -> None:
    """Refuse a statistic that no run has."""
    missing = [] if measures.has_accuracy else OF_ACCURACY
    known = known_statistics(measures.columns, measures.quality, [name])
    if known.keys() <= {*missing}:
        every = statistics_of(measures.columns, measures.quality)
        names = [other for other in every if other not in missing]
        raise ValueError(
            f"{where}: there is no statistic '{name}': {nearest(name, names)}"
        )


def as_key(label: Any) -> Key:
    """Return labels as a tuple of plain values, also those of numpy and a single one."""
    return tuple(map(without_numpy, label if isinstance(label, tuple) else (label,)))


def without_numpy(value: Any) -> Any:
    """Return a number of numpy as one of Python's, and anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def _check_no_repeat(values: Sequence[Any], where: str) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{where}: {value!r} is given twice; give it once")
        seen.add(value)


def _what_it_is(value: Any) -> str:
    """Describe a wrong value in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{reprlib.repr(value)}, of type {type(value).__name__}"
