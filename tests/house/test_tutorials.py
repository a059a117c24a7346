"""The two tutorials in docs/tutorials.md run as they are printed, on two client actors."""

import re
from pathlib import Path

import pandas as pd
import pytest
from helpers.scripts import run_script

TEXT = (Path(__file__).parents[2] / "docs" / "tutorials.md").read_text()
STAYS, DIGITS, SERVED = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


pytestmark = pytest.mark.usefixtures("ray_local")


def run(code: str, folder: Path) -> str:
    """Run a file in a folder, and return what it prints."""
    file = folder / "tutorial.py"
    file.write_text(code)
    return run_script(file)


@pytest.mark.acceptance
def test_hospitals_learn_the_length_of_a_stay(tmp_path: Path) -> None:
    assert len(STAYS.splitlines()) < 120
    said = run(STAYS, tmp_path)
    covered = re.search(r"(\d+)% covered", said)
    assert covered is not None and 65 <= int(covered[1]) <= 85
    runs = pd.read_parquet(tmp_path / "results" / "stays" / "runs.parquet")
    # Both methods stop before round 200, and three of four stays are covered.
    assert len(runs) == 6 and (runs["rounds"] < 200).all()
    assert runs["final_covered"].between(0.65, 0.85).all()
    assert (runs["final_loss"] < 0.7).all() and "final" not in runs
    assert runs["at_best_val"].notna().all()
    # 65 parameters of 4 bytes for each of three clients; the first layer is not sent.
    assert (runs["total_bytes_up"] == runs["rounds"] * 3 * 65 * 4).all()


@pytest.mark.acceptance
def test_a_study_of_images_shows_whom_the_model_serves(tmp_path: Path) -> None:
    run(DIGITS, tmp_path)
    run(SERVED, tmp_path)
    results = tmp_path / "results" / "served"
    runs = pd.read_parquet(results / "runs.parquet")
    assert len(runs) == 9 and (runs["final"] > 0.7).all()
    never = runs["final_clients_never_accuracy"]
    assert never.between(0.3, 1).all() and (never != runs["final"]).all()
    clients = pd.read_parquet(results / "clients")
    # Three evaluations of 20 clients in 3 replicates of 3 methods; 6 of 20 never come.
    assert len(clients) == 3 * 20 * 9
    absent = clients[clients["client"] >= 14]
    assert (absent["participations"] == 0).all()
    assert (results / "served.png").is_file()
