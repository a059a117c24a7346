"""Weights of a mean, and the mean of updates that an algorithm holds as rows.

A mean of updates is usually computed where they were trained, from exact sums
(`raysafl.runtime.exact_mean`). An algorithm that changes the rows before they are
averaged computes the mean itself, by the function here, which gives the same bits.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# The unit of exact sums is 2^-40, as in `raysafl.kernels.sums`.
UNITS = 2.0**40


def relative_weights(weight_RM: Tensor) -> Tensor:
    """Return weights divided by the mean of their row; equal weights become 1.0 each.

    Args:
        weight_RM: Rows of weights of at least 0, not all 0.
    """
    weight_RM = weight_RM.double()
    return weight_RM * weight_RM.shape[1] / weight_RM.sum(1, keepdim=True)


def mean_of_rows(row_MP: Tensor, weight_M: Tensor | None = None) -> Tensor:
    """Compute the mean of rows, with the bits of an answer to `TrainMean`.

    Args:
        row_MP: At least one float32 row.
        weight_M: A weight for each row, at least 0 and not all 0; None weighs all
            alike.

    Returns:
        [P] float32: sum_i(weight_i row_i) / sum_i(weight_i).
    """
    if len(row_MP) == 1:
        return row_MP[0].clone()
    weights = [1.0] * len(row_MP)
    if weight_M is not None:
        weights = relative_weights(weight_M.unsqueeze(0))[0].tolist()
    sum_P = torch.zeros(row_MP.shape[1], dtype=torch.float64)
    for row_P, weight in zip(row_MP, weights, strict=True):
        weighted_P = row_P if weight == 1.0 else row_P * weight
        sum_P += (weighted_P.double() * UNITS).round_()
    return (sum_P / (UNITS * len(row_MP))).float()


def weighted_sums(
    weight_NG: NDArray[np.float64], sums_Gn: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return weighted sums over groups, [N, n].

    They are added in the order of the groups: a matrix product would be rounded
    differently for other numbers of rows.

    Args:
        weight_NG: The weight of each group in each of N sums.
        sums_Gn: What is summed.
    """
    total_Nn = np.zeros((len(weight_NG), sums_Gn.shape[1]))
    for weight_N, sums_n in zip(weight_NG.T, sums_Gn, strict=True):
        # A loss may be infinite in a group that does not count.
        some = np.flatnonzero(weight_N)
        total_Nn[some] += weight_N[some, None] * sums_n
    return total_Nn
