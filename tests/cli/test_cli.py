"""The command line as a user meets it: output, exit codes, one message per mistake."""

import json
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from helpers.commands import EXPERIMENT, checked_output
from helpers.commands import call_here as call
from helpers.patience import PATIENCE

from raysafl.cli.catalogue import catalogue
from raysafl.cli.options import SweepOptions, grouped_help


@pytest.mark.acceptance
def test_an_address_where_nothing_answers_is_an_error_at_once(tmp_path: Path) -> None:
    """Ray alone tries for 14 minutes. Not in this process: a Ray that it has would be taken."""
    with socket.socket() as mute:
        mute.bind(("", 0))  # it does not listen
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        program = str(Path(sys.executable).with_name("raysafl"))
        done = subprocess.run(
            [program, "quickstart", "--address", address],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=PATIENCE,
        )
    assert done.returncode == 2, done.stderr
    assert "nothing accepts connections" in " ".join(done.stderr.split())
    # Nothing is said but where the sweep was to run and what is done, and nothing is written.
    told = {f"Runs on Ray: the address '{address}' of a cluster is given"}
    assert set(done.stdout.splitlines()) <= told | {"loading data", "starting Ray"}
    assert not list(tmp_path.iterdir())


def test_run_report_sync_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(EXPERIMENT)
    options = ("--scale", "smoke", "--executor", "here")
    code, said = call(monkeypatch, "run", "mine.py", *options)
    assert code == 0
    assert "[2/2]" in said
    assert "results/mine-smoke" in said and "raysafl ui results" in said
    assert "nothing was logged" not in said
    again = ("--tracking-uri", "sqlite:///other.db")
    code, said = call(monkeypatch, "run", "mine.py", *options, *again)
    assert code == 0 and "2 runs were finished before" in said and "[1/" not in said
    assert "nothing was logged to MLflow: `raysafl sync`" in said
    Path("results/mine-smoke/table.md").unlink()
    code, said = call(monkeypatch, "report", "results/mine-smoke")
    assert code == 0 and Path("results/mine-smoke/table.md").is_file()
    assert "SAFARI" in said
    code, said = call(monkeypatch, "sync", "results")
    assert code == 0 and "2 runs are in MLflow" in said


def test_the_help_of_run_shows_each_option_in_a_group_and_an_example(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, said = call(monkeypatch, "run", "--help")
    assert code == 0 and "raysafl run mine.py --scale smoke" in " ".join(said.split())
    _, *groups = said.split("─ Options ─")[1].split("╭─ ")
    help_of = grouped_help()
    for group in groups:
        name, _, lines = group.partition(" ─")
        # Only --help itself is in no group.
        options = [
            o for o, (own, meaning) in help_of.items() if own == name and meaning
        ]
        assert options and lines.count("│ --") == len(options), name
    assert {field.name for field in fields(SweepOptions)} <= help_of.keys()


def test_a_failing_run_makes_the_exit_code_1_and_names_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wild = EXPERIMENT.replace("lr=0.1, batch_size=32", "lr=1e38, batch_size=8")
    Path("wild.py").write_text(wild)
    options = ("--executor", "here", "--track", "none", "--only", "method=FedAvg")
    code, said = call(monkeypatch, "run", "wild.py", *options)
    assert code == 1
    assert "diverged, round" in said and "lower the learning rates" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.py"], "there is no experiment file nowhere.py"),
        (["recheck", ".", "-n", "0"], "-n 0 is no number of runs: give 1 or more"),
        (["run", "mine.py", "--scale", "papr"], "'papr': did you mean 'paper'"),
        (["run", "mine.py", "--only", "method"], "takes AXIS=LABEL, not 'method'"),
        (
            ["run", "mine.py", "--only", "method=FedAvg", "--only", "method=FSL"],
            "--only is given more than once for 'method'; give one",
        ),
        (["run", "mine.py", "--gpus", "0.4"], "a GPU is shared as 1/n"),
        (["report", "."], "holds no sweep"),
        (["status", "."], "holds no sweep"),
        (["results", "", "--csv", "--json"], "give --csv or --json, not both"),
    ],
)
def test_a_mistake_gives_exit_code_2_and_one_message_without_a_traceback(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(EXPERIMENT)
    code, said = call(monkeypatch, *arguments)
    assert code == 2
    assert message in said and "Traceback" not in said


def test_list_names_every_family_with_a_line_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, said = call(monkeypatch, "list", "--json")
    families = json.loads(said)
    assert code == 0 and {*families} == {*catalogue()}
    prob = families["algorithm"]["SAFARI"]["fields"]["client_prob"]
    assert prob["type"] == "float" and prob["default"] == "0.8" and prob["description"]
    assert families["dataset"]["Augmented"]["source"] == "FAST"
    code, said = call(monkeypatch, "list")
    assert code == 0 and "StratifiedServer" in said


def test_the_installed_command_starts_and_answers(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("raysafl")
    assert "FedAvg" in checked_output([command, "list"], cwd=tmp_path)
    module = [sys.executable, "-m", "raysafl", "--version"]
    assert checked_output(module).startswith("raysafl ")
