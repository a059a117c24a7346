"""The section on methods over all settings, and its figures."""

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import drawn, study_of
from helpers.scored import made

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.figures.means import intervals
from raysafl.report.pages.document import Grid, markdown
from raysafl.report.pages.methods import OVER_SETTINGS, over_settings
from raysafl.report.write import results_document
from raysafl.storage.manifest import Manifest

HEADING = f"## {OVER_SETTINGS}"


def planted(methods: int, settings: int, seeds: int) -> tuple[pd.DataFrame, Manifest]:
    """The runs of a sweep of methods with long names in some settings."""
    rng = np.random.default_rng(6)
    values = {
        (f"setting {s}", f"A method with a long name {m}"): 0.5
        + 0.02 * (m // 2)
        + 0.01 * rng.normal(size=seeds)
        for s in range(settings)
        for m in range(methods)
    }
    return made(values)


def numbers_of(methods: int, settings: int, seeds: int = 3) -> Numbers:
    """The numbers of such a sweep."""
    return Numbers.of(*planted(methods, settings, seeds))


def test_the_section_has_the_numbers_of_the_frames() -> None:
    numbers = numbers_of(4, 8)
    text, grid = over_settings(numbers)
    assert isinstance(grid, Grid)
    assert "in the 8 settings in which all methods" in str(text)
    means = numbers.methods.interquartile_means
    better = numbers.methods.improvement
    # The baseline is the sweep's first method, and the runner-up is another one.
    over = list(dict.fromkeys(better["over"]))
    assert over[0].endswith("name 0") and len(over) == 2
    for row, (_, own) in zip(grid.rows, means.iterrows(), strict=True):
        assert row[0] == own["method"]
        assert row[4] == f"{own['iqm']:.2f} [{own['low']:.2f}, {own['high']:.2f}]"
        for cell, other in zip(row[5:], over, strict=True):
            pair = better[(better["method"] == row[0]) & (better["over"] == other)]
            share = f"{100 * pair['probability'].item():.1f}" if len(pair) else "–"  # noqa: RUF001
            assert str(cell).split(" ")[0] == share


@pytest.mark.parametrize(("methods", "settings"), [(1, 8), (4, 1)])
def test_the_section_is_absent_where_there_is_nothing_to_compare(
    methods: int, settings: int
) -> None:
    document = results_document(numbers_of(methods, settings, seeds=1))
    assert HEADING not in markdown(document)


def test_intervals_are_those_of_the_frames_in_the_order_of_the_ranks() -> None:
    runs, manifest = planted(3, 4, seeds=3)
    study = study_of(manifest, runs=runs)
    figure = drawn(intervals(study))
    means = study.numbers.methods.interquartile_means
    better = study.numbers.methods.improvement
    better = better[better["over"] == better["over"][0]].assign(
        probability=lambda own: 100 * own["probability"]
    )
    left, right = figure.axes
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names == list(means["method"])
    for axes, own, column in ((left, means, "iqm"), (right, better, "probability")):
        at = [names.index(name) for name in own["method"]]
        points = np.asarray(axes.get_lines()[0].get_xydata())
        np.testing.assert_allclose(points, np.stack([own[column], at], axis=1))
    assert intervals(study_of(manifest)) is None
