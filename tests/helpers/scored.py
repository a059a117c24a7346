"""Sweeps of which the values of each replicate are given."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from raysafl.storage.manifest import Entry, Label, Manifest, Table

STATISTICS = ("final", "last10", "best", "after_server", "final_loss")


def made(
    values: Mapping[tuple[Label, ...], Sequence[float] | np.ndarray],
    axes: tuple[str, ...] = ("setting", "algorithm"),
    statistic: str = "final",
) -> tuple[pd.DataFrame, Manifest]:
    """The table of runs and the manifest of a sweep with these values of each replicate."""
    entries = [
        Entry(run_id=f"{k:012x}", labels=dict(zip(axes, key, strict=True)))
        for k, key in enumerate(values)
    ]
    rows = [
        {
            "run_id": entry.run_id,
            "status": "finished",
            "reason": "",
            "replicate": seed,
            "seed": seed,
            **dict.fromkeys(STATISTICS, np.nan),
            statistic: value,
            **{f"label.{axis}": label for axis, label in entry.labels.items()},
        }
        for entry, own in zip(entries, values.values(), strict=True)
        for seed, value in enumerate(own)
    ]
    table = Table(rows=list(axes), statistic=statistic)
    manifest = Manifest(name="made", axes=list(axes), entries=entries, table=table)
    return pd.DataFrame(rows), manifest
