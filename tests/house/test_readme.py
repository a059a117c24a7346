"""The README's promises: its commands are CI's, its first lines print its table, its study runs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.scripts import agrees

import raysafl as fl
from raysafl.quickstart import BASE, METHODS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PATIENTS = ROOT / "docs" / "patients"
STUDY = (PATIENTS / "study.py").read_text()


def blocks(begin: str) -> list[str]:
    """Return the contents of the README's fenced blocks whose fences begin so."""
    return re.findall(rf"```{begin}\n(.*?)```", README, re.DOTALL)


def test_the_two_commands_are_what_a_user_and_ci_give() -> None:
    user, developer = blocks("bash")
    assert user.endswith("pip install -e . && raysafl quickstart\n")
    assert developer.endswith("pip install -e '.[test]' -c constraints.txt && pytest\n")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[test]' -c constraints.txt" in ci and "\npytest -q " in ci
    assert "\nraysafl quickstart " in ci


def test_it_is_short() -> None:
    assert len(README.split()) <= 650


def test_the_quickstart_is_what_the_readme_says() -> None:
    assert list(METHODS) == ["FedAvg", "SAFARI"]
    assert BASE.data.clients == 10 and BASE.participation.m == 5 and BASE.rounds == 60


@pytest.mark.acceptance
def test_its_first_lines_print_its_table(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(blocks("python")[0])
    command = [sys.executable, "first.py"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    (shown,) = blocks("\nfirst")
    assert agrees(f"...{shown}...", done.stdout), done.stdout


def test_its_study_is_the_file_beside_the_data() -> None:
    assert blocks("python")[1] == STUDY


@pytest.mark.usefixtures("quick_sweeps", "untried_sweeps")
def test_the_study_runs_as_printed_and_with_two_more_seeds_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Tests of this process may have started a Ray, which a reader of the page has not.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    for name in ("patients.csv", "new.csv"):
        shutil.copy(PATIENTS / name, name)
    code = STUDY.replace("rounds=50", "rounds=9")
    exec(code, {"__name__": "__main__"})
    assert "['no' 'no' 'yes' 'yes']" in capsys.readouterr().out
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
