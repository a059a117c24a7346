"""The definition of a sweep: labelled runs, or a search space to make runs from."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raysafl.core.algorithm import LocalTraining
from raysafl.core.component import Component
from raysafl.core.text import in_brief, nearest
from raysafl.data.federation import Federation
from raysafl.data.sources import Subset
from raysafl.simulation.run import Run
from raysafl.storage.manifest import (
    PAPER,
    Entry,
    Manifest,
    Table,
)
from raysafl.sweep.measures import (
    Key,
    Measures,
    as_key,
    check_labels,
    check_run,
    check_table,
    path_of,
)

# From a sampled configuration to a run.
Make = Callable[[dict[str, Any]], Run]
SMOKE = "smoke"
SMOKE_ROUNDS = 2
# Tune's schedulers that give a run that has begun another configuration.
CHANGE_RUNS = {"PopulationBasedTraining", "PopulationBasedTrainingReplay"}


def smoke(run: Run) -> Run:
    """Shorten a run to two rounds of a few small steps, to see that it works.

    Local training of e epochs becomes e + 1 steps. So one epoch becomes two steps, and
    its run stays different from a run of one step. The clients and the server keep
    their samples; of the test samples 100 are left, unless clients are evaluated one by one.
    """
    brief: Run = _brief(run)
    brief = brief.replace(rounds=SMOKE_ROUNDS, eval_every=1, replicates=1)
    # With few test samples, a client might have none by which it could be judged.
    if run.eval_clients is not None or not isinstance(run.data, Federation):
        return brief
    return brief.replace({"data.dataset": Subset(dataset=run.data.dataset, test=100)})


def _brief(part: Component) -> Any:
    """Shorten every local training inside a component to a few small steps."""
    if isinstance(part, LocalTraining):
        steps = part.epochs + 1 if part.epochs else min(part.steps or 1, 8)
        return part.replace(
            epochs=None, steps=steps, batch_size=min(part.batch_size, 16)
        )
    return part.replace(
        {n: _brief(value) for n, value in part if isinstance(value, Component)}
    )


@dataclass(frozen=True, repr=False)
class Sweep:
    """A named set of runs.

    The runs are given by `runs`, or they are made from a search space of Ray Tune:
    `space` with `base`. A space of `tune.grid_search` alone is expanded into
    labelled runs. The configurations of any other space are drawn at random before anything
    runs, or a search algorithm asks for one after the other.

    Example:
        >>> import raysafl as fl
        >>> base = fl.Run(
        ...     data=fl.Federation(clients=10, partition=fl.ClassesPerClient(p=1)),
        ...     model=fl.Logistic(),
        ...     algorithm=fl.FedAvg(),
        ...     participation=fl.Uniform(m=3),
        ...     local=fl.LocalTraining(lr=0.1, batch_size=32, epochs=1),
        ...     rounds=20,
        ... )
        >>> sweep = fl.Sweep(
        ...     "heterogeneity",
        ...     {(p,): base.replace({"data.partition.p": p}) for p in (1, 3)},
        ...     axes=["p"],
        ... )
        >>> [entry.labels for entry in sweep.manifest().entries]
        [{'p': 1}, {'p': 3}]
        >>> sweep.at("smoke").labelled()[(1,)].rounds
        2

    Args:
        name: the name of the sweep, which is also that of its folder.
        runs: a list of runs, or a mapping from labels to runs. The labels are a tuple
            with one value for each name in `axes`.
        axes: the names of the labels.
        table: how the results become a table; by default the last axis goes across.
        title: the heading of the report; by default the name.
        notes: Markdown for the report, such as why its settings were chosen.
        space: a search space of Ray Tune.
        base: a run whose fields the space names by dotted path:
            `{"algorithm.client_prob": tune.uniform(0, 1)}`; or a function from a sampled
            configuration to a run.
        num_samples: how many configurations Tune samples.
        search_alg: Tune's search algorithm; by default random sampling.
        scheduler: Tune's scheduler, which may stop runs early.
        metric: what the search algorithm and the scheduler go by: a column of numbers
            that the runs measure, such as `test_loss`. By default it is what the runs
            are judged by, `test_accuracy` for classes: on the validation data if every
            run is known to have some, otherwise on the test set.
        mode: whether they look for the `max` or the `min` of the metric; by default
            whichever is better.
        scales: further ways to shrink each run, by name. The scales `paper` (the runs
            as they are given) and `smoke` (two short rounds) always exist.
        scale: the present scale; `at` changes it.

    Raises:
        ValueError: there are no runs; labels do not match the axes, or read alike; the
            table speaks of an axis, a label or a statistic that does not exist.
    """

    name: str
    runs: Sequence[Run] | Mapping[Any, Run] = ()
    axes: Sequence[str] = ()
    table: Table | None = None
    title: str = ""
    notes: str = ""
    space: Mapping[str, Any] = field(default_factory=dict)
    base: Run | Make | None = None
    num_samples: int = 1
    search_alg: Any = None
    scheduler: Any = None
    metric: str = ""
    mode: str = ""
    scales: Mapping[str, Callable[[Run], Run]] = field(default_factory=dict)
    scale: str = PAPER

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(
                f"the first argument of Sweep is its name, and is {in_brief(self.name)}; give "
                "Sweep('name', runs=...)"
            )
        if not re.fullmatch(r"[^/\\\x00.][^/\\\x00]*", self.name):
            raise ValueError(
                f"a sweep's name becomes a folder; '{self.name}' cannot be one"
            )
        if bool(self.runs) == bool(self.space):
            raise ValueError(
                f"sweep '{self.name}' needs runs=... or space=..., exactly one of them; "
                f"{'both are given' if self.runs else 'there is no run in either'}"
            )
        if self.space and self.base is None:
            raise ValueError(
                f"sweep '{self.name}': a space needs base=Run(...) or base=function"
            )
        try:
            self._check()
        except ValueError as error:
            raise ValueError(f"sweep '{self.name}': {error}") from None

    def __repr__(self) -> str:
        keys = self._keys
        size = f"{len(keys)} runs" if keys else f"{self.num_samples} sampled runs"
        scale = "" if self.scale == PAPER else f", scale {self.scale}"
        return f"Sweep '{self.name}': {size} over {', '.join(self.axis_names)}{scale}"

    def _check(self) -> None:
        """Check what the sweep says of its runs, as far as they are known."""
        if isinstance(self.runs, str) or not isinstance(self.runs, Mapping | Sequence):
            raise ValueError(
                f"runs is {in_brief(self.runs)}; give a list of runs, or a mapping from "
                "labels to runs"
            )
        for key, run in self._points if self.runs else ():
            check_run(run, f"the run with the label {', '.join(map(str, key))}")
        is_function = callable(self.base) and not isinstance(self.base, type)
        if self.base is not None and not is_function:
            check_run(self.base, "base")
        base = self.base
        for name in self.space:
            if isinstance(base, Run) and (path := path_of(base, name)) != name:
                raise ValueError(f"space has '{name}': did you mean '{path}'?")
        if self.is_grid and not self._keys:
            raise ValueError("space has a grid without values; give at least one")
        measures = self._measures()
        self._check_search(measures)
        check_labels(self.axes or self.axis_names, self._keys)
        if self.table is not None:
            check_table(self._laid_out, self.axis_names, self._keys)
            if measures is not None:
                measures.check_statistics(self._laid_out)

    def _check_search(self, measures: Measures | None) -> None:
        """Refuse what Tune could not search or stop by."""
        for name, method in (
            ("search_alg", "suggest"),
            ("scheduler", "on_trial_result"),
        ):
            part = getattr(self, name)
            if isinstance(part, type) or not (part is None or hasattr(part, method)):
                raise ValueError(
                    f"{name} is {in_brief(part)}; give one of Tune's, made with its "
                    "arguments, or none"
                )
        # Their names are looked for, since Ray takes seconds to import.
        if {base.__name__ for base in type(self.scheduler).__mro__} & CHANGE_RUNS:
            raise ValueError(
                f"the scheduler {type(self.scheduler).__name__} changes the configuration of "
                "runs that have begun, but a run has one configuration from its first round to "
                "its last; take a scheduler that stops runs, such as ASHAScheduler()"
            )
        if (metric := getattr(self.scheduler, "metric", None)) is not None:
            raise ValueError(
                f"the scheduler has the metric '{metric}' already; make a new one without "
                "metric and mode, and give these to the sweep"
            )
        for column in (self.metric, getattr(self.search_alg, "metric", None)):
            if isinstance(column, str) and column:
                (measures or Measures()).check_metric(column, measures is not None)
        if self.mode not in ("", "max", "min"):
            raise ValueError(
                f"mode is '{self.mode}'; give 'max' or 'min', or leave it out"
            )

    @property
    def reported(self) -> list[str] | None:
        """The columns that each run reports to Tune; None before runs are sampled."""
        measures = self._measures()
        return None if measures is None else measures.scalars

    def _measures(self) -> Measures | None:
        """Return what the runs measure; None if it is known only when they are made."""
        if self.runs:
            return Measures.of(run for _, run in self._points)
        in_space = any(name.partition(".")[0] == "objective" for name in self.space)
        if not isinstance(self.base, Run) or in_space:
            return None
        measures = Measures.of([self.base])
        if not {"data", "data.validation"}.isdisjoint(self.space):
            # Some of the data may have no validation samples.
            return replace(measures, has_validation=False)
        return measures

    def _aim(self, measures: Measures) -> dict[str, Any]:
        """Return what a search is, for the manifest: by what it goes, and what is best.

        Args:
            measures: what the runs measure.
        """
        # A search algorithm may have been told when it was made.
        given = (getattr(self.search_alg, name, None) for name in ("metric", "mode"))
        metric_given, mode_given = (
            value if isinstance(value, str) else "" for value in given
        )
        is_searched = self.is_searched or self.scheduler is not None
        # Runs of a grid are only compared, and none is chosen.
        if self.is_grid and not (self.metric or is_searched):
            return {"searched_by": "", "goal": None}
        metric = metric_given or self.metric or measures.goal[0]
        goal = metric, self.mode or mode_given or measures.mode(metric)
        by = metric if is_searched else ""
        return {"searched_by": by, "goal": goal, "is_drawn": not self.is_grid}

    def at(self, scale: str) -> "Sweep":
        """Return this sweep at another scale.

        Raises:
            ValueError: there is no such scale; the nearest name is given.
        """
        known = {PAPER: lambda run: run, SMOKE: smoke, **self.scales}
        if scale not in known:
            raise ValueError(f"unknown scale '{scale}': {nearest(scale, known)}")
        return replace(self, scale=scale)

    def build(self, config: dict[str, Any]) -> Run:
        """Make the run of a sampled configuration, at the sweep's scale."""
        assert self.base is not None
        base = self.base
        run = base.replace(config) if isinstance(base, Run) else base(config)
        return self._shrink(check_run(run, f"what base returned for {config}"))

    def _shrink(self, run: Run) -> Run:
        if self.scale == PAPER:
            return run
        shrunk = self.scales.get(self.scale, smoke)(run)
        return check_run(shrunk, f"what scales[{self.scale!r}] returned")

    @property
    def is_grid(self) -> bool:
        """Whether all runs are known before anything is drawn."""
        return bool(self.runs) or (
            not self.is_searched
            and self.num_samples == 1
            and all(
                isinstance(v, dict) and set(v) == {"grid_search"}
                for v in self.space.values()
            )
        )

    @property
    def is_searched(self) -> bool:
        """Whether a search algorithm asks for one run after the other.

        All other runs are known before anything runs.
        """
        return self.search_alg is not None

    def labelled(self) -> dict[Key, Run]:
        """Return the runs by their labels, which have one value for each axis.

        The mapping is empty if the runs are only known when they have been sampled.
        """
        make = self.build if self.space else self._shrink
        return {key: make(own) for key, own in self._points}

    @property
    def _points(self) -> list[tuple[Key, Any]]:
        """The labels of each known run, and the run that was given, or its configuration."""
        if not self.is_grid:
            return []
        if self.space:
            grids = [own["grid_search"] for own in self.space.values()]
            keys = map(as_key, itertools.product(*grids))
            return [(key, dict(zip(self.space, key, strict=True))) for key in keys]
        runs = self.runs
        given = runs.items() if isinstance(runs, Mapping) else enumerate(runs)
        return [(as_key(label), run) for label, run in given]

    @property
    def _keys(self) -> list[Key]:
        """The labels of each run; none if the runs are known when sampled."""
        return [key for key, _ in self._points]

    @property
    def axis_names(self) -> list[str]:
        """The names of the axes; a sweep without labels has the axis `run`."""
        if self.space:
            return list(self.space)
        return list(self.axes) or ["run"]

    @property
    def _laid_out(self) -> Table:
        """The table; without rows and columns of its own the last axis goes across."""
        axes = self.axis_names
        table = self.table or Table()
        if table.rows or table.columns:
            return table
        across = axes[-1:] if len(axes) > 1 else []
        down = axes[: len(axes) - len(across)]
        # `replace` would take what the table leaves open as given.
        given = {name: getattr(table, name) for name in table.model_fields_set}
        return Table(**given | {"rows": down, "columns": across})

    def manifest(
        self,
        labelled: Mapping[Key, Run] | None = None,
        example: Iterable[Run] = (),
    ) -> Manifest:
        """Return what is stored of the sweep beside its results.

        It does not hold runs that a search algorithm will ask for.

        Args:
            labelled: the runs by their labels, if they are known: those that were drawn, or
                what `labelled` returns.
            example: a run that stands for those that a search algorithm will ask for.

        Raises:
            ValueError: two labels name the same run, or a run cannot be made.
        """
        axes = self.axis_names
        entries: dict[str, Entry] = {}
        labelled = self.labelled() if labelled is None else labelled
        measures = Measures.of(labelled.values()) if labelled else self._measures()
        if measures is None:
            # Other runs than the example may have no validation samples.
            measures = replace(Measures.of(example), has_validation=False)
        for key, run in labelled.items():
            run_id = run.id
            if run_id in entries:
                raise ValueError(
                    f"sweep '{self.name}': labels {tuple(entries[run_id].labels.values())} and "
                    f"{key} name the same run, maybe with other seeds; give each run once"
                )
            entries[run_id] = Entry(
                run_id=run_id,
                labels=dict(zip(axes, key, strict=True)),
                config=run.model_dump(mode="json"),
            )
        return Manifest(
            name=self.name,
            title=self.title or self.name,
            scale=self.scale,
            axes=axes,
            entries=list(entries.values()),
            table=measures.filled(self._laid_out),
            columns=dict(measures.columns),
            quality=measures.quality,
            **self._aim(measures),
            notes=self.notes,
        )
