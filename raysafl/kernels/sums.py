"""sums."""

import numpy as np

from raysafl.kernels.jit import compiled

UNITS = 2.0**40


@compiled()
def _add(sum_P, row_P):  # type: ignore[no-untyped-def] # pragma: no cover
    for p in range(len(sum_P)):
        sum_P[p] += np.rint(np.float64(row_P[p]) * UNITS)
