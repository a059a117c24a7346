"""The sizes and fonts of the usual venues, which the package tueplots knows."""

import importlib
import re

from matplotlib.font_manager import get_font_names

from raysafl.core.needs import need
from raysafl.core.text import nearest
from raysafl.report.figures.style import Style

# What can be read in print, in points.
LEAST = 7.0
# The width of the text of NeurIPS, ICLR and COLM, in inches.
USUAL = "5.5"
# A font of the family of Times, which comes with matplotlib.
TIMES = "STIXGeneral"
# Widths in inches that a page can have.
NARROWEST = 2.0
WIDEST = 20.0


def paper_style(width: str = USUAL) -> Style:
    """Return the style of figures that are printed as they are.

    Args:
        width: inches; or a venue, such as `icml2024` for the width of one column and
            `icml2024:2` for that of both, or without the year for the last one that is
            known.

    Raises:
        ValueError: it is neither, or a venue and tueplots is not installed.
    """
    if re.fullmatch(r"\d+(\.\d*)?", width):
        inches = float(width)
        if not NARROWEST <= inches <= WIDEST:
            raise ValueError(
                f"a figure is {NARROWEST:g} to {WIDEST:g} inches wide, not {width}"
            )
        return _in_print(inches, 8.0, 7.0, TIMES)
    name, _, columns = width.partition(":")
    need("tueplots", f"--width {width} (but no width in inches, such as 3.25)")
    sizes, letters, fonts = (
        importlib.import_module(f"tueplots.{module}")
        for module in ("figsizes", "fontsizes", "fonts")
    )
    known = [own for own in dir(letters) if re.fullmatch(r"[a-z]+\d{4}", own)]
    last = [own for own in known if own.rstrip("0123456789") == name]
    venue = last[-1] if last else name
    if venue not in known or columns not in ("", "1", "2"):
        raise ValueError(
            f"--width takes inches, or VENUE or VENUE:2 for both columns, not '{width}': "
            f"{nearest(name, known)}"
        )
    # A venue whose text has one column has one width.
    kind = "_full" if columns == "2" else "_half"
    size = getattr(sizes, venue, None) or getattr(sizes, venue + kind)
    point = getattr(letters, venue)()
    font = getattr(fonts, venue, None)
    # The first font of a family that this machine has.
    family = font()["font.serif"] if font else []
    return _in_print(
        size()["figure.figsize"][0],
        point["axes.labelsize"],
        point["xtick.labelsize"],
        next((font for font in family if font in get_font_names()), TIMES),
    )


def _in_print(width: float, letters: float, small: float, font: str) -> Style:
    """Return a style whose letters can be read, and whose page is as high as a paper's."""
    return Style(
        width,
        height=8.0,
        is_fixed=True,
        room=0.52,
        letters=max(LEAST, letters),
        small=max(LEAST, small),
        font=font,
    )
