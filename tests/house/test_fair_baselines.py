"""The page docs/fair_baselines.md: its Python runs, and trains what it says."""

import re
from pathlib import Path
from typing import Any

from raysafl import Algorithm, LocalTraining, Run, Uniform
from raysafl.quickstart import BASE
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation

PAGE = Path(__file__).parents[2] / "docs" / "fair_baselines.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_every_setting_of_the_page_can_be_trained() -> None:
    names: dict[str, Any] = {"__name__": "fair_baselines"}
    runs: list[Run] = []
    for block in BLOCKS:
        names.pop("run", None)
        names.pop("local", None)
        before = set(map(id, names.values()))
        exec(block, names)
        made = [value for value in names.values() if id(value) not in before]
        runs += [value for value in made if isinstance(value, Run) and value != BASE]
        parts = {"local": LocalTraining, "algorithm": Algorithm}
        for value in made:
            for field, kind in parts.items():
                if isinstance(value, kind):
                    policy = Uniform(m=3)
                    runs.append(BASE.replace({field: value, "participation": policy}))
    runs.append(BASE.replace(algorithm=names["ByRoots"]()))
    assert len(runs) >= 7
    for run in runs:
        run = run.replace(rounds=2, replicates=1)
        sim = Simulation(run, Worker(run.cells, run.data.load(), run.model))
        while not sim.done:
            sim.step()
        assert sim.round == 2 and not sim.replicates[0].diverged
