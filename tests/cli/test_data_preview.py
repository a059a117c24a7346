"""`raysafl data show`: its numbers by hand, its pictures by their pixels, its mistakes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.commands import EXPERIMENT
from helpers.commands import call_here as call
from PIL import Image
from rich.console import Console

import raysafl as fl
from raysafl.cli.data_preview import preview
from raysafl.report.figures.clients import MANY, label_histogram

NAMES: dict[str, Any] = {}
exec(EXPERIMENT, NAMES)
BASE: fl.Run = NAMES["BASE"]
SKEWED = BASE.replace({"data.partition": fl.Dirichlet(alpha=0.1), "data.server": None})
SWEEP = fl.Sweep(
    name="mine",
    axes=("data", "who"),
    runs={
        ("one class", "absent"): BASE,
        ("one class", "all"): BASE.replace(participation=fl.Uniform(m=3)),
        ("skewed", "absent"): SKEWED,
    },
)


def pixels(png: bytes) -> np.ndarray:
    image: np.ndarray = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    return image


def share_of(png: bytes, colour: str) -> float:
    """How much of a picture has this colour."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return float((np.abs(pixels(png).astype(int) - wanted).max(axis=-1) <= 2).mean())


def test_each_distinct_data_and_policy_is_shown_once(tmp_path: Path) -> None:
    table, files = preview(SWEEP, tmp_path / "pictures", {})
    names = [file.name for file in files]
    assert names == [
        "labels-1.png", "labels-2.png", "participation-1.png", "participation-2.png",
    ]  # fmt: skip
    assert all(pixels(file.read_bytes()).shape[1] > 900 for file in files)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    first, second = [
        line for line in console.export_text().splitlines() if "absent" in line
    ]
    cells = [cell.strip() for cell in first.split("│")[1:-1]]
    assert cells[:3] == ["data one class, who absent, the first of 2 runs", "2", "10"]
    assert cells[4:7] == ["1", "0.00 (3.32)", "50"]
    cells = [cell.strip() for cell in second.split("│")[1:-1]]
    assert cells[:4] == ["data skewed, who absent", "1", "10", "143"]
    assert cells[6:] == ["0", "0"]


def test_the_stack_shows_each_class_in_its_share() -> None:
    one, two = "#0072B2", "#D55E00"
    counts = np.array([[30, 10]] * 5)
    png = label_histogram(counts, np.zeros(2, int), ("cat", "$dog$"), "costs $5")
    ratio = share_of(png, one) / share_of(png, two)
    assert 2.4 < ratio < 3.4  # 3, and the legend's own two patches
    served = label_histogram(counts, np.array([0, 9]), (), "t")
    assert share_of(served, one) / share_of(served, two) < ratio


# Classes are colours and clients are places: neither asks for the other.
@pytest.mark.parametrize(("classes", "clients"), [(1, 1), (MANY, 100), (65, 100)])
def test_any_number_of_classes_and_clients_is_drawn(classes: int, clients: int) -> None:
    counts = np.ones((clients, classes), int)
    assert pixels(label_histogram(counts, counts[0], (), "t")).std() > 5


def test_the_command_prints_the_table_and_where_the_pictures_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(EXPERIMENT)
    chosen = ("--only", "method=SAFARI", "--rounds", "5")
    code, said = call(monkeypatch, "data", "show", "mine.py", *chosen)
    assert code == 0 and "method SAFARI" in said and "FedAvg" not in said
    written = ("labels-1.png", "participation-1.png")
    assert "\n  ".join(["Written:", *(f"data/mine/{f}" for f in written)]) in said
    assert all((tmp_path / "data" / "mine" / file).is_file() for file in written)


def test_clients_with_names_are_named_and_listed(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "age": range(8),
            "ill": ["yes", "no"] * 4,
            "town": ["Genf", "Bern", "Bern", "Bern"] * 2,
        }
    )
    source = fl.from_pandas(table, label="ill", client="town", test=table)
    data = fl.Federation(
        dataset=source, clients=2, partition=fl.ByColumn(column="town")
    )
    run = BASE.replace(data=data, participation=fl.Uniform(m=1))
    shown, files = preview(fl.Sweep(name="towns", runs=[run]), tmp_path, {})
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown)
    assert "2: Bern, Genf" in console.export_text()
    (listed,) = [file for file in files if file.suffix == ".csv"]
    assert listed.read_text().splitlines() == [
        "client,name,samples,class no,class yes",
        "0,Bern,6,4,2",
        "1,Genf,2,0,2",
    ]
