"""The pictures of docs/policies.md show the cohorts that a simulated run has."""

from pathlib import Path

import numpy as np
import pytest
from helpers.scripts import module_of
from PIL import Image

import raysafl as fl
from raysafl.quickstart import BASE

DOCS = Path(__file__).parents[2] / "docs"


DRAWN = module_of(DOCS / "policies_picture.py")


def test_each_picture_stands_on_the_page() -> None:
    files = {path.stem for path in (DOCS / "policies").glob("*.png")}
    page = (DOCS / "policies.md").read_text()
    assert files == set(DRAWN.POLICIES)
    assert all(f"](policies/{name}.png)" in page for name in files)


@pytest.mark.parametrize("name", DRAWN.POLICIES)
def test_a_picture_shows_who_came_in_a_simulated_run(name: str) -> None:
    # One class a client, so that twenty clients can share the digits.
    run = BASE.replace(
        {
            "data.clients": DRAWN.CLIENTS,
            "participation": DRAWN.POLICIES[name],
            "rounds": DRAWN.ROUNDS,
            "replicates": 1,
            "eval_every": DRAWN.ROUNDS,
            "local": fl.LocalTraining(lr=0.1, batch_size=64, steps=1),
        }
    )
    cohorts = fl.simulate(run)["cohorts"].explode().tolist()
    came = np.zeros((DRAWN.CLIENTS, DRAWN.ROUNDS), int)
    for t, ids in enumerate(cohorts):
        came[list(ids), t] = 1
    image = np.asarray(Image.open(DOCS / "policies" / f"{name}.png").convert("RGB"))
    left, top = (edge + DRAWN.CELL // 2 for edge in DRAWN.CORNER)
    rows = top + DRAWN.CELL * np.arange(DRAWN.CLIENTS)
    columns = left + DRAWN.CELL * np.arange(DRAWN.ROUNDS)
    pixels = image[np.ix_(rows, columns)]
    away = (pixels == DRAWN.AWAY).all(-1)
    enforced = (pixels == DRAWN.ENFORCED).all(-1)
    assert (away == (came == 0)).all()
    assert (away | enforced | (pixels == DRAWN.CAME).all(-1)).all()
    snapshots = np.flatnonzero(enforced.any(0)).tolist()
    assert snapshots == (list(range(0, 60, 10)) if name == "snapshot" else [])
