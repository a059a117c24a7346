"""A table as CSV."""

from typing import Any

import pandas as pd

from raysafl.core.text import printable


def as_csv(frame: pd.DataFrame) -> str:
    """Write a frame as CSV, of which spreadsheets take no text for a formula.

    A text that begins as one gets an apostrophe before it; numbers stay as they are.
    """
    texts = frame.select_dtypes(exclude=["number", "bool"]).map(_cell)
    shown = frame.assign(**{str(name): texts[name] for name in texts})
    return shown.rename(columns=_cell).to_csv(index=False)


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip()[:1] in {*"=+-@"} else text
