"""The page docs/one_page.md: its Python runs as printed."""

import re
from pathlib import Path

import pytest

from raysafl.sweep.experiment_file import load_sweep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "one_page.md").read_text()
SWEEP, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.usefixtures("quick_sweeps", "untried_sweeps")
def test_the_sweep_in_python_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Tests of this process may have started a Ray, which a reader of the page has not.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert len([line for line in SWEEP.splitlines() if line.strip()]) <= 16
    code = SWEEP.replace("rounds=60", "rounds=2")
    exec(code, {"__name__": "__main__"})
    assert "label.client_prob" in capsys.readouterr().out
    assert (tmp_path / "results" / "client_prob_and_n0" / "runs.parquet").is_file()
    # The same text is a file for `raysafl run`, which runs nothing when it is read.
    file = tmp_path / "mine.py"
    file.write_text(code)
    assert load_sweep(file).axis_names == ["client_prob", "n0"]
    assert not capsys.readouterr().out
