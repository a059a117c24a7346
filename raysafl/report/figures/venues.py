"""The style of figures for a paper: as wide as its text, in letters like its own."""

import re

from raysafl.core.text import nearest
from raysafl.report.figures.style import Style

# Inches of one column and of the whole text, by the venues' style files.
WIDTHS = {
    "iclr": (5.5, 5.5),
    "icml": (3.25, 6.75),
    "ieee": (3.5, 7.16),
    "jmlr": (6.0, 6.0),
    "neurips": (5.5, 5.5),
}
# The width of the text of NeurIPS and ICLR, in inches.
USUAL = "5.5"
# A font of the family of Times, which comes with matplotlib.
TIMES = "STIXGeneral"


def paper_style(width: str = USUAL) -> Style:
    """Return the style of figures that are printed as they are.

    Args:
        width: inches; or a venue, such as `icml` for the width of one column and `icml:2`
            for that of both.

    Raises:
        ValueError: it is neither.
    """
    name, _, columns = width.partition(":")
    if re.fullmatch(r"\d+(\.\d*)?", width):
        inches = float(width)
    elif name in WIDTHS and columns in ("", "1", "2"):
        inches = WIDTHS[name][columns == "2"]
    else:
        raise ValueError(
            f"the width is inches, or VENUE or VENUE:2 for both columns, not '{width}': "
            f"{nearest(name, WIDTHS)}"
        )
    # Smaller letters than these cannot be read in print.
    return Style(
        inches,
        height=8.0,
        is_fixed=True,
        scale=0.52,
        letters=8.0,
        small=7.0,
        font=TIMES,
    )
