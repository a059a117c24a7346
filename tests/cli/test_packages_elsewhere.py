"""Exit codes where the packages that raysafl needs are not in the environment's own folder.

The environments are real. They hold no package, and find those of the Python that runs
the tests through links.
"""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import raysafl

PACKAGES = sysconfig.get_path("purelib")
MINE = """
def wrong(key):
    return {}[key]
"""
PROGRAM = """
from raysafl.cli.start import explain
from raysafl.storage.redaction import redacted
import mine

# The last is a TypeError inside the package, as only a mistake of raysafl's gives one.
for call in (mine.wrong, redacted):
    try:
        call(3)
    except BaseException as error:
        # As in a command, the outermost line is the first below this file.
        error.__traceback__ = error.__traceback__.tb_next
        print("code", explain(error, print))
"""


@pytest.fixture(scope="module", params=["dist-packages", "target"])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The variables under which `python` is that of a new environment.

    Its packages are in a folder to which a `.pth` file leads, of a name by which packages are
    known, or of any name, where `pip install --target` puts them.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    base = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    venv.create(folder / "env", symlinks=True)
    link = folder / request.param
    own = Path(sysconfig.get_path("purelib", "venv", base))
    (own / "elsewhere.pth").write_text(f"{link}\n")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(PACKAGES)
    return os.environ | {
        "PATH": f"{sysconfig.get_path('scripts', 'venv', base)}:{os.environ['PATH']}",
        "PYTHONPATH": f"{Path(raysafl.__file__).parents[1]}:{folder / 'target'}",
    }


def said(environment: dict[str, str], folder: Path, *command: str) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def test_an_error_is_the_users_or_raysafls_wherever_packages_are(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "program.py").write_text(PROGRAM)
    code, text = said(environment, tmp_path, "python", "program.py")
    mine = tmp_path / "mine.py"
    wrong, bug, rest = text.split("code ")
    assert f"Error: {mine}:3 raises the error above" in wrong
    assert bug.startswith("2\n") and "Please report it" in bug
    assert (code, rest) == (0, "3\n")
