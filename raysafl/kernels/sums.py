"""Exact sums of float32 rows, in units of 2^-40; see `raysafl.runtime.exact_mean`."""

import numpy as np

from raysafl.kernels.jit import compiled

# The number of units in 1.0.
UNITS = 2.0**40


@compiled()
def add_row(sum_P, row_P):  # type: ignore[no-untyped-def] # pragma: no cover
    """Add a float32 row to a sum in units of 2^-40: sum_P += round(row_P * 2^40).

    The sum stays exact while each of its entries is below 2^53 units (8,192), because
    float64 represents all whole numbers up to there. The loop is compiled without
    `fastmath`, because each number must be rounded as written.

    Args:
        sum_P: [P] float64 whole numbers, changed in place.
        row_P: [P] float32.
    """
    for p in range(len(sum_P)):
        sum_P[p] += np.rint(np.float64(row_P[p]) * UNITS)
