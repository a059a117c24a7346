"""The notebook docs/quickstart.ipynb: its cells run in their order, and it is the quickstart."""

import ast
import json
from pathlib import Path

import pytest

from raysafl.quickstart import SWEEP

FILE = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"
CELLS = json.loads(FILE.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


@pytest.mark.usefixtures("quick_sweeps", "untried_sweeps")
def test_the_notebook_s_cells_run_the_quickstart_s_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(cell.get("outputs") for cell in CELLS)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    values = []
    for code in CODE:
        short = code.replace("ROUNDS = 60", "ROUNDS = 2").replace(
            "SEEDS = 5", "SEEDS = 2"
        )
        cell = ast.parse(short)
        # The last line of a cell, if it is an expression, is what the notebook shows.
        last = cell.body.pop() if isinstance(cell.body[-1], ast.Expr) else None
        exec(compile(cell, FILE.name, "exec"), names)
        if isinstance(last, ast.Expr):
            values.append(
                eval(compile(ast.Expression(last.value), FILE.name, "eval"), names)
            )
    sweep, outcome, gain, came = values
    cut = {"rounds": 2, "replicates": 2}
    assert sweep.runs == {k: run.replace(cut) for k, run in SWEEP.runs.items()}
    assert outcome.ok and len(outcome.runs) == 18 * 2
    assert len(gain) == 9 and (gain["mean"].abs() < 1).all()
    assert set(came["round"]) <= {0, 1} and len(came) > 0
