"""The statistics of one replicate alone."""

from typing import Any

import numpy as np
import pandas as pd

from raysafl.storage.statistics import BY_NAME, STATISTICS, summarise_each


def summarise(rows: pd.DataFrame, *named: str) -> dict[str, Any]:
    """The `STATISTICS` of a replicate and some others, of its rows in order of rounds."""
    found = summarise_each(rows, np.array([len(rows)]), named=[*BY_NAME, *named])
    return {name: found[name].tolist()[0] for name in [*STATISTICS, *named]}
