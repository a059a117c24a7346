"""All figures of a sweep. One that is listed here is in the report, and can be exported."""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from raysafl.report.figures.curves import curves, enforcement_curves, over_time
from raysafl.report.figures.heatmap import heatmap
from raysafl.report.figures.intervals import intervals
from raysafl.report.figures.participation import rasters
from raysafl.report.figures.search import slices
from raysafl.report.figures.served import clients_served
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import Style
from raysafl.report.pages.over_settings import OVER_SETTINGS
from raysafl.report.wording import quality_text
from raysafl.storage.manifest import Manifest
from raysafl.storage.statistics import ACCURACIES


class KnownFigure(NamedTuple):
    """A figure: its function, and its texts, into which `about` fills what runs are judged by.

    Attributes:
        draw: returns the figure, or None if the sweep has no numbers for it.
        section: the section of the report.
        alt: the text for readers who cannot see it.
        caption: what it shows.
        is_part: whether it shows single entries, of which it has a part if there are very
            many.
    """

    draw: Callable[[Study, Style], Figure | None]
    section: str
    alt: str
    caption: str
    is_part: bool = False

    def about(self, text: str, manifest: Manifest) -> str:
        """Fill what the runs of a sweep are judged by into `alt` or `caption`."""
        quality = quality_text(manifest)
        statistic = manifest.table.statistic
        value = "accuracy" if statistic in ACCURACIES else statistic
        column = manifest.columns.get(manifest.quality)
        what = f" ({column.meaning})" if column else " of the global model"
        meaning = quality.capitalize() + what
        return text.format(quality=quality, value=value, meaning=meaning)


# By the names of their files.
FIGURES = {
    "curves": KnownFigure(
        curves,
        "Curves",
        "Lines of {quality} over rounds, one line per method, one panel for each combination "
        "of the other labels; or, of a search, a line for each run. ",
        "{meaning} after each evaluated round.",
        is_part=True,
    ),
    "curves_over_time": KnownFigure(
        over_time,
        "Curves",
        "The lines of {quality} over virtual seconds. ",
        "{meaning} over the seconds that the rounds would have taken on the clients' devices.",
        is_part=True,
    ),
    "heatmap": KnownFigure(
        heatmap,
        "Heat map",
        "The table as coloured entries with numbers. ",
        "The table's numbers, without spread.",
        is_part=True,
    ),
    "slices": KnownFigure(
        slices,
        "Runs over their values",
        "Points of {value}, one for each run, over its value on each axis, one panel per axis. ",
        "Each run of the search over its value on each axis. A panel shows one axis; the other "
        "values differ from point to point as well.",
        is_part=True,
    ),
    "enforce_prob": KnownFigure(
        enforcement_curves,
        "Probability of an enforced round",
        "Lines of the probability of an enforced round, over rounds. ",
        "The adaptive policies' probability of an enforced round.",
        is_part=True,
    ),
    "participation": KnownFigure(
        rasters,
        "Participation",
        "Rasters of clients by rounds, marked where a client was in the cohort; bars of each "
        "client's share. ",
        "The cohort of each round, for the first run of each policy. A round in which only the "
        "server trained has a cohort as well, which was not asked to train.",
    ),
    "served": KnownFigure(
        clients_served,
        "Accuracy per client",
        "Points of each client's quality against the share of rounds in which it trained, one "
        "panel for each combination of the labels beside the method. ",
        "How good the global model is on each client's own kind of test samples, against how "
        "often the client has trained. Clients at 0 % never trained.",
    ),
    "intervals": KnownFigure(
        intervals,
        OVER_SETTINGS,
        "Marks with intervals: each method's interquartile mean of {value}, and its share of wins "
        "over the baseline. ",
        "The interquartile mean of each method, and the share of settings and seeds in which it is "
        "better than the baseline. Bars are 95 % intervals, and the dashed line is a tie.",
    ),
}
