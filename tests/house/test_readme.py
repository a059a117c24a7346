"""The README's promises: its commands are CI's, and its table and picture are of the quickstart."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.commands import RAYSAFL
from helpers.scripts import agrees

import raysafl as fl
from raysafl.quickstart import BASE, SWEEP

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_two_commands_are_what_a_user_and_ci_give() -> None:
    user, developer = re.findall(r"```bash\n(.*?)\n```", README)
    assert user.endswith("pip install -e . && raysafl quickstart")
    assert developer.endswith("pip install -e '.[test]' -c constraints.txt && pytest")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[test]' -c constraints.txt" in ci and "\npytest -q " in ci
    assert "\nraysafl quickstart " in ci


def test_it_is_short() -> None:
    without_output = re.sub(r"```\nFedAvg.*?```", "", README, flags=re.DOTALL)
    assert 450 <= len(without_output.split()) <= 600


def test_the_quickstart_is_what_the_readme_says() -> None:
    assert BASE.replicates == 5 and BASE.rounds == 60 and BASE.data.clients == 10
    assert len(SWEEP.runs) == 18 and BASE.data.server.n0 == 100
    assert README.count("±") == 18 + 1  # an entry for each run, and the line below them


@pytest.mark.acceptance
def test_its_table_is_what_the_quickstart_prints(tmp_path: Path) -> None:
    command = [*RAYSAFL, "quickstart", "--executor", "here"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    # The last two lines have the seconds and the folder.
    (shown,) = re.findall(r"```\n(FedAvg.*in %\.\n).*?```", README, re.DOTALL)
    assert agrees(f"...{shown}...", done.stdout), done.stdout


@pytest.mark.usefixtures("quick_sweeps", "untried_sweeps")
def test_the_study_runs_as_printed_and_with_two_more_seeds_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Tests of this process may have started a Ray, which a reader of the page has not.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    rng = np.random.default_rng(0)
    patients = pd.DataFrame({"age": rng.integers(20, 90, 400)})
    patients["hospital"] = rng.choice(list("ABCDEFGH"), 400)
    patients["ill"] = np.where(patients.age > 60, "yes", "no")
    patients.to_csv("patients.csv", index=False)
    pd.DataFrame({"age": [25, 85]}).to_csv("new.csv", index=False)
    (study,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(study.splitlines()) <= 60
    code = study.replace("rounds=50", "rounds=9")
    exec(code, {"__name__": "__main__"})
    assert "['no' 'yes']" in capsys.readouterr().out
    before = stored_rows()
    exec(code.replace("seeds=3", "seeds=5"), {"__name__": "__main__"})
    after = stored_rows()
    assert set(after["replicate"]) == set(range(5)) and len(before) == 4 * 3 * 9
    # The measured seconds are equal as well: nothing was computed again.
    pd.testing.assert_frame_equal(
        before, after[after["replicate"] < 3].reset_index(drop=True), check_exact=True
    )


def stored_rows() -> pd.DataFrame:
    keys = ["label.algorithm", "label.local.lr", "replicate", "round"]
    rows = fl.load("results/patients").rounds.sort_values(keys, ignore_index=True)
    return rows[[*keys, "seconds", "test_accuracy"]]
