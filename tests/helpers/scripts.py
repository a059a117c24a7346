"""Code of a user's that a test runs: a file as `python FILE` does, and the blocks of a page."""

import importlib.util
import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

# A block of code, after the comment that says why no test runs it, if there is one.
BLOCK = re.compile(
    r"(<!-- not run: [^>]+ -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE
)
NUMBER = r"\d+(?:\.\d+)?"
SPREAD = rf"± +{NUMBER}"


def module_of(file: Path) -> Any:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def agrees(shown: str, said: str) -> bool:
    """Say whether a text is what was said: equal words, and numbers that are nearly equal.

    Another processor may round another way, which moves an accuracy by a sample or two. So
    numbers may differ by 2 %, and fractions by one in their last place; the spread over few
    seeds, which moves more, may be any number.
    """
    parts = re.split(rf"(\.\.\.|{SPREAD}|{NUMBER})", shown)
    numbers = [part for part in parts if re.fullmatch(NUMBER, part)]
    wild = {part: SPREAD for part in parts if re.fullmatch(SPREAD, part)}
    wild["..."] = ".*"
    pattern = "".join(
        rf"({NUMBER})" if part in numbers else wild.get(part, re.escape(part))
        for part in parts
    )
    # Tables have blanks at the ends of lines.
    said = re.sub(r" +$", "", said, flags=re.MULTILINE)
    found = re.fullmatch(pattern, said, re.DOTALL)
    if found is None:
        return False
    gaps = [
        abs(float(ours) - float(theirs))
        for ours, theirs in zip(numbers, found.groups(), strict=True)
    ]
    allowed = [
        max(0.02 * float(number), places and 1.01 * 10**-places)
        for number in numbers
        for places in [len(number.partition(".")[2])]
    ]
    return all(gap <= most for gap, most in zip(gaps, allowed, strict=True))
