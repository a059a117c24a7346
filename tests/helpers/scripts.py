"""Code of a user's that a test runs: a file as `python FILE` does, and the blocks of a page."""

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest

# A block of code, after the comment that says why no test runs it, if there is one.
BLOCK = re.compile(
    r"(<!-- not run: [^>]+ -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE
)


def run_script(file: Path) -> str:
    """Run a file in its folder, and return what it prints.

    A Ray that this process has started is the one that the file uses.
    """
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.chdir(file.parent)
        patch.syspath_prepend(str(file.parent))
        patch.setattr("sys.argv", [file.name])
        runpy.run_path(str(file), run_name="__main__")
    return said.getvalue()
