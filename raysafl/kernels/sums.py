"""Exact sums of float32 rows, in units of 2^-40; see `raysafl.runtime.exact_mean`."""

import numpy as np

from raysafl.kernels.jit import compiled

# The number of units in 1.0.
UNITS = 2.0**40


@compiled()
def add_rows(sums_CP, row_TP, index_T):  # type: ignore[no-untyped-def] # pragma: no cover
    """Add float32 rows to sums in units of 2^-40: sum_P += round(row_P * 2^40).

    A sum stays exact while each of its entries is below 2^53 units (8,192), because
    float64 represents all whole numbers up to there. The loop is compiled without
    `fastmath`, because each number must be rounded as written.

    Args:
        sums_CP: [C, P] float64 whole numbers, changed in place.
        row_TP: [T, P] float32.
        index_T: [T] to which of the sums each row is added.
    """
    for t in range(len(row_TP)):
        sum_P = sums_CP[index_T[t]]
        row_P = row_TP[t]
        for p in range(len(sum_P)):
            sum_P[p] += np.rint(np.float64(row_P[p]) * UNITS)
