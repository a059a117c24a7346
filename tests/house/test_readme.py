"""The README's promises: its Python runs, its commands are those of the command line and of CI."""

import re
import sys
from pathlib import Path

import pytest

from raysafl import Runner, Sweep
from raysafl.quickstart import BASE
from raysafl.sweep.experiment_file import load_sweep

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SWEEP, ALGORITHM = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_sweep_in_python_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Tests of this process may have started a Ray, which a reader of the README has not.
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


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_an_algorithm_a_policy_and_a_model_of_ones_own_run_on_ray_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "my_file.py"
    module.write_text(ALGORITHM)
    sweep = load_sweep(module).at("smoke")
    outcome = Runner(sweep, out=tmp_path / "out", track="none", quiet=True).run()
    assert outcome.ok and isinstance(sweep, Sweep)
    assert set(outcome.runs["config.algorithm"]) == {"Median", "SAFARI"}
    assert set(outcome.runs["config.participation"]) == {"Shifts"}
    assert set(outcome.runs["config.model"]) == {"Tanh"}
    sys.modules.pop("raysafl_experiment_my_file")


def test_every_command_named_exists_and_the_test_command_is_the_ci_s() -> None:
    from raysafl.cli.app import app

    known = {
        c.name or c.callback.__name__ for c in app.registered_commands if c.callback
    }
    known |= {group.name for group in app.registered_groups if group.name}
    named = set(
        re.findall(r"raysafl (\w+)", " ".join(re.findall(r"`+([^`]*)`+", README)))
    )
    named.discard("as")  # import raysafl as fl
    assert (
        named <= known
        and {"quickstart", "run", "ui", "sync", "doctor", "list"} <= named
    )
    ci = (ROOT / ".ci" / "run").read_text()
    assert "pip install -e '.[test]' -c constraints.txt && pytest\n" in README
    assert "-e '.[test]' -c constraints.txt" in ci and "--cov=raysafl" in ci


def test_every_file_linked_is_there() -> None:
    for target in re.findall(r"\]\((?!https://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_quickstart_is_what_the_readme_says() -> None:
    assert BASE.replicates == 5 and BASE.rounds == 60 and BASE.data.clients == 10
