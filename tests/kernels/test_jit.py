"""Compiled loops: their cache on disk, damaged, shared and missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import checked_output

ROOT = Path(__file__).parents[2]

LOOP = """
from raysafl.kernels.jit import compiled
@compiled()
def double(x): return 2 * x
hits = double.stats.cache_hits
print(double(21), double(0.5), double.stats.cache_path, sum(hits.values()))
"""


def doubled(file: Path, *arguments: str, **env: str) -> list[str]:
    command = [sys.executable, str(file), *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return checked_output(command, env=env).split()


# The loop is loaded, its index on disk is damaged, and it is loaded twice more.
DAMAGED = """
import pathlib, runpy, sys
runpy.run_path(sys.argv[1])
index, *_ = pathlib.Path(sys.argv[2]).glob("**/*.nbi")
index.write_bytes(b"")
for _ in range(2):
    runpy.run_path(sys.argv[1])
"""


def test_a_loop_is_kept_on_disk_or_compiled_anew_where_it_is_damaged_or_cannot_be_kept(
    tmp_path: Path,
) -> None:
    file, kept = tmp_path / "loop.py", tmp_path / "kept"
    file.write_text(LOOP)
    values = ["42", "1.0"]
    (tmp_path / "damaged.py").write_text(DAMAGED)
    said = doubled(
        tmp_path / "damaged.py", str(file), str(kept), NUMBA_CACHE_DIR=str(kept)
    )
    loads = [said[k : k + 4] for k in range(0, 12, 4)]
    assert [load[:2] for load in loads] == [values] * 3
    assert [load[3] for load in loads] == ["0", "0", "2"]
    (tmp_path / "__pycache__").write_text("not a folder")
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), "/dev/null")
    assert doubled(file, **nowhere) == [*values, "None", "0"]


@pytest.mark.acceptance
def test_two_processes_that_keep_a_loop_at_once_keep_both_kinds(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    file.write_text(
        LOOP.replace("double(21), double(0.5)", "*map(double, eval(input()))")
    )
    command, env["PYTHONPATH"] = [sys.executable, str(file)], str(ROOT)

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=env, text=True, stdin=-1, stdout=-1)

    both = [started(), started()]
    out = [p.communicate(x)[0] for p, x in zip(both, ("[21]", "[0.5]"), strict=True)]
    assert [(o.split()[0], o.split()[2]) for o in out] == [("42", "0"), ("1.0", "0")]
    later = started().communicate("[21, 0.5]")[0].split()
    assert later[:2] == ["42", "1.0"] and later[3] == "2"
