"""The tutorials run as they are printed.

Those of docs/tutorials.md are files, which run on two client actors. Each page tutorial_*.md is
one tutorial: its Python blocks, one after another, are a file with the page's name (algorithm.py
of tutorial_algorithm.md), its bash blocks are commands given in the file's folder, and a text
block is what the block before it prints, where ... stands for any text. A Python block that
begins with a file's name, as `# study.py`, begins this file.
"""

import os
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import checked_output
from helpers.scripts import BLOCK, agrees, run_script

from raysafl import Runner
from raysafl.sweep.experiment_file import load_sweep

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "tutorials.md").read_text()
STAYS, DIGITS, SERVED = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
DOCUMENTS = sorted(DOCS.glob("tutorial_*.md"))
# These start Ray, or take most of a minute of processor time.
SLOW = {"tutorial_cluster", "tutorial_paper"}


def run(code: str, folder: Path) -> str:
    """Run a file in a folder with one seed of its three, and return what it prints."""
    file = folder / "tutorial.py"
    file.write_text(code.replace("replicates=3", "replicates=1"))
    return run_script(file)


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local", "quick_sweeps", "untried_sweeps")
def test_hospitals_learn_the_length_of_a_stay(tmp_path: Path) -> None:
    assert len(STAYS.splitlines()) < 120
    said = run(STAYS, tmp_path)
    covered = re.search(r"(\d+)% covered", said)
    assert covered is not None and 65 <= int(covered[1]) <= 85
    runs = pd.read_parquet(tmp_path / "results" / "stays" / "runs.parquet")
    # Both methods stop before round 200, and three of four stays are covered.
    assert len(runs) == 2 and (runs["rounds"] < 200).all()
    assert runs["final_covered"].between(0.65, 0.85).all()
    assert (runs["final_loss"] < 0.7).all() and "final" not in runs
    assert runs["at_best_val"].notna().all()
    # 65 parameters of 4 bytes for each of three clients; the first layer is not sent.
    assert (runs["total_bytes_up"] == runs["rounds"] * 3 * 65 * 4).all()


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_a_study_of_images_shows_whom_the_model_serves(tmp_path: Path) -> None:
    run(DIGITS, tmp_path)
    run(SERVED, tmp_path)
    results = tmp_path / "results" / "served"
    runs = pd.read_parquet(results / "runs.parquet")
    assert len(runs) == 3 and (runs["final"] > 0.7).all()
    never = runs["final_clients_never_accuracy"]
    assert never.between(0.3, 1).all() and (never != runs["final"]).all()
    clients = pd.read_parquet(results / "clients")
    # Three evaluations of 20 clients in 3 methods; 6 of 20 never participate.
    assert len(clients) == 3 * 20 * 3
    absent = clients[clients["client"] >= 14]
    assert (absent["participations"] == 0).all()
    assert (results / "served.png").is_file()


def test_a_text_agrees_with_equal_words_and_near_numbers_only() -> None:
    assert agrees("a 90.1 %\n... b\n", "a 90.2 %\nc\nd b\n")
    assert not agrees("a 90.1 %\n", "a 93.1 %\n")
    assert not agrees("a 90.1 %\n", "b 90.1 %\n")
    assert agrees("0.3 of 3\n", "0.4 of 3\n") and not agrees("3\n", "4\n")
    assert not agrees("a\n", "a\nb\n") and not agrees("a 1\n", "a\n")
    assert agrees("9 ± 1.5\n", "9 ± 12.0\n") and not agrees("9 ± 1.5\n", "8 ± 1.5\n")


@pytest.mark.usefixtures("quick_sweeps")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=page.stem, marks=[pytest.mark.acceptance] * (page.stem in SLOW)
        )
        for page in DOCUMENTS
    ],
)
def test_a_tutorial_of_a_page_runs_and_prints_as_it_says(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # Tests of this process may have started a Ray, which a reader of the page has not.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    file = tmp_path / f"{page.stem.removeprefix('tutorial_')}.py"
    names: dict[str, object] = {"__name__": "__main__", "__file__": str(file)}
    said, code_so_far = None, ""
    for why_not, kind, code in BLOCK.findall(page.read_text()):
        if kind == "text":
            assert said is None or agrees(code, said), said
            continue
        said = None
        if kind == "latex":
            read = re.findall(r"\\(?:input|includegraphics)\{(.*?)\}", code)
            assert read and all(Path(name).is_file() for name in read), read
        elif kind == "python" and not why_not:
            if begun := re.match(r"# (\w+\.py)\n", code):
                file, code_so_far = tmp_path / begun[1], ""
                names = {"__name__": "__main__", "__file__": str(file)}
            # Lines have the numbers that they have in the reader's file.
            padded = "\n" * code_so_far.count("\n") + code
            code_so_far += code
            file.write_text(code_so_far)
            exec(compile(padded, str(file), "exec"), names)
            said = capsys.readouterr().out
        elif kind == "bash" and not why_not:
            env = os.environ | {"PATH": bin_first}
            said = checked_output(["bash", "-e", "-c", code], env=env)


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local", "quick_sweeps", "untried_sweeps")
# Of one_page.md, the first block is another file.
@pytest.mark.parametrize(
    ("page", "first"), [("tutorial_algorithm", 0), ("one_page", 1)]
)
def test_the_classes_of_a_page_give_the_same_rows_on_ray(
    page: str, first: int, tmp_path: Path
) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL
    )
    file = tmp_path / f"classes_of_{page}.py"
    file.write_text("".join(blocks[first:]))
    sweep, rows = load_sweep(file).at("smoke"), list[pd.DataFrame]()
    for executor in ("here", "ray"):
        out = tmp_path / executor
        assert Runner(sweep, out, executor=executor, quiet=True).run().ok
        found = pd.read_parquet(out / "rounds").drop(columns="seconds")
        rows.append(found.sort_values(["cell", "round"], ignore_index=True))
    here, there = rows
    pd.testing.assert_frame_equal(here, there, check_exact=True)
