"""The figures of who participates and who is served: what they show against means by hand."""

import numpy as np
import pyarrow as pa
import pytest
from helpers.drawn import drawn, study_of
from helpers.scored import made
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from raysafl.report.analysis.numbers import Study
from raysafl.report.figures.clients import FEW, ROWS, clients_served, draw_raster
from raysafl.report.figures.style import OKABE_ITO
from raysafl.storage.rows import CLIENTS, ROUNDS, of_owners


def points(came: list[list[int]], quality: list[list[float]]) -> tuple[np.ndarray, str]:
    """The points of one run, and the notes; each list has one list for each replicate.

    Clients were evaluated after rounds 4 and 9, in which the first has other numbers. The
    last replicate has diverged.
    """
    runs, manifest = made({("FedAvg",): [0.5] * len(came)}, ("algorithm",))
    runs.loc[runs.index[-1], "status"] = "diverged"
    rows = [
        {
            "run_id": runs["run_id"][0],
            "replicate": r,
            "seed": r,
            "round": t,
            "client": i,
        }
        | {"participations": n if t == 9 else 0, "quality": q if t == 9 else 0.99}
        for r, own in enumerate(zip(came, quality, strict=True))
        for i, (n, q) in enumerate(zip(*own, strict=True))
        for t in (4, 9)
    ]
    numbers = study_of(manifest, runs=runs).numbers
    rounds, clients = (of_owners(t.empty_table(), {}) for t in (ROUNDS, CLIENTS))
    table = pa.Table.from_pylist(rows, schema=clients.schema)
    study = Study(numbers, rounds, table)
    figure = drawn(clients_served(study))
    (line,) = figure.axes[0].get_lines()
    return np.asarray(line.get_xydata()), str(figure.get_label())


def test_a_point_is_the_mean_of_a_client_over_seeds_after_the_last_evaluation() -> None:
    came = [[10, 5, 0], [8, 3, 0], [1, 1, 1]]
    quality = [[0.9, 0.6, 0.2], [0.7, 0.5, 0.4], [0.1, 0.1, 0.1]]
    found, notes = points(came, quality)
    # In per cent: of ten rounds, and of accuracy.
    np.testing.assert_allclose(found, [[90, 80], [40, 55], [0, 30]])
    assert notes.startswith("A point is a client. ")


def test_more_than_150_clients_are_20_equal_groups_by_participation() -> None:
    rng = np.random.default_rng(0)
    came, quality = rng.integers(0, 11, 200), rng.random(200)
    found, notes = points([came.tolist()] * 2, [quality.tolist()] * 2)
    order = sorted(range(200), key=lambda i: (came[i], i))
    groups = [order[k : k + 10] for k in range(0, 200, 10)]
    due = [[10 * came[own].mean(), 100 * quality[own].mean()] for own in groups]
    np.testing.assert_allclose(found, due)
    assert "Of more than 150 clients a point is one of 20 groups" in notes


@pytest.mark.parametrize("clients", [3, FEW + 1, 5 * ROWS + 1])
def test_a_raster_shows_who_participated_and_each_client_s_share_of_the_rounds(
    clients: int,
) -> None:
    took_part = np.random.default_rng(0).random((4, clients)) < 0.5
    axes = Figure().subplots()
    draw_raster(axes, took_part, "", np.array([False, True, False, False]))
    (image,) = axes.images
    picture = np.asarray(image.get_array())
    assert list(image.get_extent()) == [-0.5, 3.5, -0.5, clients - 0.5]
    assert len(picture) == (clients if clients <= ROWS else -(-clients // 6))
    # How much of each pixel is coloured is how many of its clients participated.
    colours = np.array([to_rgb(OKABE_ITO[k]) for k in (0, 1, 0, 0)])
    shown = ((1 - picture) / (1 - colours)).mean(axis=2)
    each = 6 if clients > ROWS else 1
    padded = np.full((4, len(picture) * each), np.nan)
    padded[:, :clients] = took_part
    expected = np.nanmean(padded.reshape(4, -1, each), axis=2).T
    np.testing.assert_allclose(shown, expected, atol=1e-12)
    (side,) = axes.child_axes
    widths = (
        [bar.get_width() for bar in side.patches]
        if clients <= FEW
        else side.patches[0].get_data().values
    )
    np.testing.assert_allclose(widths, 100 * took_part.mean(axis=0))


def test_in_a_small_raster_the_gaps_between_clients_hide_no_client() -> None:
    figure = Figure((3.25, 1.2), dpi=200)
    axes = figure.subplots()
    draw_raster(axes, np.ones((9, FEW), bool), "", np.zeros(9, bool))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    left, low, right, high = axes.bbox.extents.astype(int)
    pixels = np.asarray(canvas.buffer_rgba())[::-1][low + 3 : high, left + 3 : right]
    # Four fifths of each row are blue, whose red is 0.
    assert 0.15 < pixels[..., 0].mean() / 255 < 0.3
