"""What a sweep is: runs under labels, or a Tune search space and a way to make runs of it."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raysafl.core.algorithm import LocalTraining
from raysafl.core.component import Component
from raysafl.core.text import nearest
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Claim, Entry, Label, Manifest, Printed, Table

Mean = tuple[float, float | None]  # and standard deviation
Make = Callable[[dict[str, Any]], Run]
SMOKE_ROUNDS = 2


def sample_key(config: Mapping[str, Any]) -> str:
    """A name for a sampled configuration that makes no run: the same whenever it is sampled."""
    text = json.dumps({name: str(value) for name, value in config.items()}, sort_keys=True)
    return f"sample-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def smoke(run: Run) -> Run:
    """Two rounds of a run, to see that it runs: all training cut to a few small steps.

    e epochs become e + 1 steps, so that one step and one epoch stay two runs; the data keeps
    its clients and the server's samples, but few test samples.
    """
    brief: Run = _brief(run)
    brief = brief.replace(rounds=SMOKE_ROUNDS, eval_every=1, replicates=1)
    return brief.replace(data=run.data.tested_on(100))


def _brief(part: Component) -> Any:
    """A component with every local training inside it cut to a few small steps."""
    if isinstance(part, LocalTraining):
        steps = part.epochs + 1 if part.epochs else min(part.steps or 1, 8)
        return part.replace(epochs=None, steps=steps, batch_size=min(part.batch_size, 16))
    return part.replace({n: _brief(value) for n, value in part if isinstance(value, Component)})


@dataclass(frozen=True)
class Sweep:
    """A named set of runs.

    Either `runs`: a list, or a dict from labels (one value per name in `axes`) to runs.
    Or `space`, a Tune search space, with `base`, a run whose fields the space names by dotted
    path (`{"algorithm.q": tune.uniform(0, 1)}`), or with `make`, a function from a sampled
    configuration to a run. A space of `tune.grid_search` alone is expanded into labelled runs
    at once. `num_samples`, `search_alg` and `scheduler` go to Tune as they are.

    `table` says how to show it; `paper` holds the printed numbers, labels to (mean, std), `more`
    those of other statistics by their names; `claims` are what the paper says in words.
    `scales` are named ways to shrink a run; "paper" (as given) and "smoke" always exist.

    Raises:
        ValueError: no runs, labels that do not match the axes, or two labels for one run.
    """

    name: str
    runs: Sequence[Run] | Mapping[Any, Run] = ()
    axes: Sequence[str] = ()
    table: Table | None = None
    paper: Mapping[Any, Mean] = field(default_factory=dict)
    more: Mapping[str, Mapping[Any, Mean]] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    title: str = ""
    notes: str = ""
    space: Mapping[str, Any] = field(default_factory=dict)
    base: Run | None = None
    make: Make | None = None
    num_samples: int = 1
    search_alg: Any = None
    scheduler: Any = None
    metric: str = "test_accuracy"
    mode: str = "max"
    scales: Mapping[str, Callable[[Run], Run]] = field(default_factory=dict)
    scale: str = "paper"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^/\\\x00.][^/\\\x00]*", self.name):
            raise ValueError(f"a sweep's name becomes a folder; '{self.name}' cannot be one")
        if bool(self.runs) == bool(self.space):
            raise ValueError(
                f"sweep '{self.name}' needs runs=... or space=..., exactly one of them"
            )
        if self.space and self.base is None and self.make is None:
            raise ValueError(f"sweep '{self.name}': a space needs base=Run(...) or make=function")

    def at(self, scale: str) -> "Sweep":
        """This sweep at another scale."""
        known = {"paper": lambda run: run, "smoke": smoke, **self.scales}
        if scale not in known:
            raise ValueError(f"unknown scale '{scale}': {nearest(scale, known)}")
        return replace(self, scale=scale)

    def build(self, config: dict[str, Any]) -> Run:
        """The run that a sampled configuration stands for, at this scale."""
        if self.make is not None:
            run = self.make(config)
        else:
            assert self.base is not None
            run = self.base.replace(config)
        return self._shrink(run)

    def _shrink(self, run: Run) -> Run:
        if self.scale == "paper":
            return run
        return self.scales.get(self.scale, smoke)(run)

    @property
    def is_grid(self) -> bool:
        """Whether all runs are known beforehand."""
        return bool(self.runs) or (
            self.num_samples == 1
            and self.search_alg is None
            and all(isinstance(v, dict) and set(v) == {"grid_search"} for v in self.space.values())
        )

    def labelled(self) -> dict[tuple[Label, ...], Run]:
        """Labels (one value per axis) to runs; empty if they are only known when sampled."""
        if not self.is_grid:
            return {}
        if self.space:
            values = itertools.product(*(v["grid_search"] for v in self.space.values()))
            return {c: self.build(dict(zip(self.space, c, strict=True))) for c in values}
        pairs = self.runs.items() if isinstance(self.runs, Mapping) else enumerate(self.runs)
        return {k if isinstance(k, tuple) else (k,): self._shrink(run) for k, run in pairs}

    def first(self, only: Mapping[str, str]) -> tuple[str, Run]:
        """The first run that bears these labels (compared as text), and its labels in words.

        Raises:
            ValueError: nothing bears them, or the runs are only known when sampled.
        """
        if not self.is_grid:
            raise ValueError(
                f"sweep '{self.name}' samples its runs, none is known beforehand; "
                "put the one you mean into runs=[...]"
            )
        manifest, runs = self.manifest(), {run.id: run for run in self.labelled().values()}
        chosen = manifest.select(only)
        if not chosen:
            raise ValueError(
                f"no run bears all of {', '.join(f'{k}={v}' for k, v in only.items())}"
            )
        labels = manifest.labels()[chosen[0]]
        return ", ".join(f"{k}={v}" for k, v in labels.items()), runs[chosen[0]]

    @property
    def axis_names(self) -> list[str]:
        """The names of the labels."""
        if self.space:
            return list(self.space)
        return list(self.axes) or ["run"]

    def _printed(self, numbers: Mapping[Any, Mean], statistic: str = "") -> list[Printed]:
        axes = self.axis_names
        return [
            Printed(
                labels=dict(zip(axes, key if isinstance(key, tuple) else (key,), strict=True)),
                mean=mean,
                std=std,
                statistic=statistic,
            )
            for key, (mean, std) in numbers.items()
        ]

    def _table(self) -> Table:
        axes = self.axis_names
        rows, columns = (axes[:-1], axes[-1:]) if len(axes) > 1 else (axes, [])
        more = [p for name, numbers in self.more.items() for p in self._printed(numbers, name)]
        table = self.table or Table(rows=rows, columns=columns)
        return table.replace(paper=self._printed(self.paper), more=more)

    def manifest(self, sampled: Mapping[str, dict[str, Label]] | None = None) -> Manifest:
        """What to store; `sampled` are the labels of runs that came from distributions."""
        axes = self.axis_names
        entries: dict[str, Entry] = {}
        for key, run in self.labelled().items():
            if len(key) != len(axes):
                raise ValueError(
                    f"sweep '{self.name}': label {key} has {len(key)} values, but the axes are "
                    f"{axes}; give axes=(...) with one name per value"
                )
            if run.id in entries:
                raise ValueError(
                    f"sweep '{self.name}': labels {tuple(entries[run.id].labels.values())} and "
                    f"{key} name the same run; give each run once"
                )
            entries[run.id] = Entry(run_id=run.id, labels=dict(zip(axes, key, strict=True)))
        for run_id, labels in (sampled or {}).items():
            entries[run_id] = Entry(run_id=run_id, labels=labels)
        return Manifest(
            name=self.name,
            title=self.title or self.name,
            scale=self.scale,
            axes=axes,
            entries=list(entries.values()),
            table=self._table(),
            claims=list(self.claims),
            notes=self.notes,
        )
