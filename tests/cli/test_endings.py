"""However a command ends: one exit code, at most one message, no traceback of raysafl's."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import call, call_here
from helpers.patience import PATIENCE

from raysafl.cli.start import BUG, REPORT, explain
from raysafl.storage.store import Store
from raysafl.sweep.experiment_file import load_sweep

pytestmark = pytest.mark.usefixtures("no_pictures")
SOURCE = """
from raysafl.data.sources import Source
from raysafl.quickstart import BASE
from raysafl import Sweep

class Mine(Source):
    def load(self):
        return {}[3]

SWEEP = Sweep("mine", [BASE.replace({"data.dataset": Mine()})])
"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x = 1\0\n", "source code string cannot contain null bytes"),
        ("x = 'é'\n".encode("latin-1"), "codec can't decode byte 0xe9"),
        (b"x = " + b"(" * 3000, "too many nested parentheses"),
        (b"import sys\nsys.exit()\n", "odd.py:2 does not import: it ends the program"),
    ],
)
def test_an_odd_experiment_file_is_one_clear_error(
    content: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "odd.py"
    file.write_bytes(content)
    with pytest.raises(ValueError) as error:
        load_sweep(file)
    assert message in str(error.value)


def test_ctrl_c_raised_by_an_experiment_file_ends_the_command_as_ctrl_c_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text("raise KeyboardInterrupt")
    code, said = call(tmp_path, "run", "mine.py")
    assert code == 130 and said.startswith("Stopped.")
    assert "Traceback" not in said


def test_what_the_users_data_raise_before_a_sweep_names_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    code, said = call_here(monkeypatch, "run", "mine.py")
    said = " ".join(said.split())
    assert code == 2 and "Error: load (mine.py:8): KeyError: 3" in said, said
    assert "raysafl/" not in said.replace(str(tmp_path), "")
    assert not (tmp_path / "results" / "mine" / "manifest.json").exists()


def test_an_error_in_a_package_is_not_the_users_wherever_packages_are(
    tmp_path: Path,
) -> None:
    for name, code in (("mine", 2), ("site-packages", BUG), ("dist-packages", BUG)):
        file = tmp_path / name / "module.py"
        file.parent.mkdir()
        file.write_text("{}[3]")
        try:
            exec(compile(file.read_text(), file, "exec"))
        except KeyError as error:
            own = error.with_traceback(error.__traceback__.tb_next)  # type: ignore[union-attr]
        said: list[str] = []
        assert explain(own, said.append) == code
        assert f'File "{file}", line 1' in said[0] and "KeyError: 3" in said[0]
        of_user = f"Error: {file}:1 raises the error above"
        assert said[-1] == (REPORT if code == BUG else of_user)


@pytest.fixture
def folder(real_results: Path, tmp_path: Path) -> Path:
    """A copy of a finished sweep, without what is made from its rows."""
    copy = tmp_path / "results" / "quickstart"
    copy.mkdir(parents=True)
    for file in (real_results / "quickstart").rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            target = copy / file.relative_to(real_results / "quickstart")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    return copy


@pytest.mark.parametrize(
    "place", ["manifest.json", "rounds/*.parquet", "ledger.jsonl", "report.html"]
)
def test_a_folder_in_the_place_of_a_file_is_named(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = min(folder.glob(place), default=folder / place)
    file.unlink(missing_ok=True)
    file.mkdir(parents=True)
    monkeypatch.chdir(folder.parents[1])
    code, said = call_here(monkeypatch, "report", "results/quickstart")
    assert code == 2 and file.name in said and "Traceback" not in said, said


@pytest.mark.filterwarnings("ignore:.* cannot be read and is left out")
@pytest.mark.parametrize(
    ("place", "code", "commands"),
    [
        ("rounds/*.parquet", 1, ("report", "results")),
        ("manifest.json", 2, ("report", "results", "sync")),
    ],
)
def test_all_commands_end_alike_on_a_damaged_folder(
    place: str,
    code: int,
    commands: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = min(folder.glob(place))
    file.write_bytes(file.read_bytes()[:100])
    monkeypatch.chdir(folder.parents[1])
    for command in commands:
        query = [""] if command == "results" else []
        found, said = call_here(monkeypatch, command, *query, "results/quickstart")
        assert found == code, said
        assert "`raysafl verify` says which" in said or file.name in said, said


def test_markup_in_names_and_labels_is_printed_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = folder.with_name("[red]q")
    folder.rename(odd)
    store = Store(odd)
    manifest = store.manifest().replace(title="[/] and :star: of [bold]q")
    for entry in manifest.entries:
        entry.labels["algorithm"] = f"{entry.labels['algorithm']}[/red]"
    store.write_manifest(manifest)
    code, said = call_here(monkeypatch, "report", "results/[red]q")
    assert code == 0, said
    assert "[/] and :star: of [bold]q" in said and "SAFARI[/red]" in said
    assert "Written:\n  results/[red]q/table.md\n" in said
    code, said = call_here(monkeypatch, "results", "s == 4", "results")
    assert code == 0 and "SAFARI[/red]" in said
    code, said = call_here(monkeypatch, "results", "nothing == '[/]'", "results")
    assert code == 2 and "Traceback" not in said


WHERE_ERRORS_ARE_LOST = """
import ctypes, signal, sys
from raysafl.cli import start

signal.signal(signal.SIGTERM, start.interrupt)
# Python ignores errors in a callback of a lock of its imports, and in one of C code.
code = compile("signal.raise_signal(signal.SIGTERM)", sys.argv[1], "exec")
try:
    ctypes.CFUNCTYPE(None)(lambda: exec(code))()
    signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    "place", ["<frozen importlib._bootstrap>", "/lib/llvmlite/binding/engine.py"]
)
def test_a_signal_where_errors_are_lost_is_put_off(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHERE_ERRORS_ARE_LOST, place],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
