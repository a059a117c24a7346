"""All figures of a sweep. One that is listed here is in the report, and can be exported."""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from raysafl.report.analysis.numbers import Study
from raysafl.report.figures.clients import clients_served, rasters
from raysafl.report.figures.curves import curves, enforcement_curves, over_time
from raysafl.report.figures.means import heatmap, intervals, slices
from raysafl.report.figures.style import Style
from raysafl.report.pages.methods import OVER_SETTINGS
from raysafl.report.wording import quality_text
from raysafl.storage.manifest import Manifest


class KnownFigure(NamedTuple):
    """A figure: its function, and its caption, into which `about` fills what runs are judged by.

    Attributes:
        draw: returns the figure, or None if the sweep has no numbers for it.
        section: the section of the report.
        caption: what it shows.
    """

    draw: Callable[[Study, Style], Figure | None]
    section: str
    caption: str

    def about(self, manifest: Manifest) -> str:
        """Say what the figure shows, with what the runs of a sweep are judged by."""
        column = manifest.columns.get(manifest.quality)
        what = f" ({column.meaning})" if column else " of the global model"
        return self.caption.format(meaning=quality_text(manifest).capitalize() + what)


# By the names of their files.
FIGURES = {
    "curves": KnownFigure(
        curves,
        "Curves",
        "{meaning} after each evaluated round.",
    ),
    "curves_over_time": KnownFigure(
        over_time,
        "Curves",
        "{meaning} over the seconds that the rounds would have taken on the clients' devices.",
    ),
    "heatmap": KnownFigure(
        heatmap,
        "Heat map",
        "The table's numbers, without spread.",
    ),
    "slices": KnownFigure(
        slices,
        "Runs over their values",
        "Each run of the search over its value on each axis. A panel shows one axis; the other "
        "values differ from point to point as well.",
    ),
    "enforce_prob": KnownFigure(
        enforcement_curves,
        "Probability of an enforced round",
        "The adaptive policies' probability of an enforced round.",
    ),
    "participation": KnownFigure(
        rasters,
        "Participation",
        "The cohort of each round, for the first run of each policy. A round in which only the "
        "server trained has a cohort as well, which was not asked to train.",
    ),
    "served": KnownFigure(
        clients_served,
        "Accuracy per client",
        "How good the global model is on each client's own kind of test samples, against how "
        "often the client has trained. Clients at 0 % never trained.",
    ),
    "intervals": KnownFigure(
        intervals,
        OVER_SETTINGS,
        "The interquartile mean of each method, and the share of settings and seeds in which it is "
        "better than the baseline. Bars are 95 % intervals, and the dashed line is a tie.",
    ),
}
