"""What is measured of models, from the sums that a machine returns."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raysafl.core.objective import Value
from raysafl.core.work import TEST, Evaluation, Rows, Work
from raysafl.simulation.judging import scores
from raysafl.training.evaluation import Evaluator


def evaluated(evaluator: Evaluator, w_RP: Tensor) -> list[dict[str, Value]]:
    """What is measured of each model on the whole test set."""
    size = len(evaluator.test.y)
    sums_nR = evaluator.sums_on(w_RP, evaluator.test, slice(0, size)).cpu().numpy()
    return [evaluator.measures.values(sums_n, size) for sums_n in sums_nR.T]


def scored(
    work: Work, w: Mapping[int, Tensor], rows: Sequence[Rows] = (TEST,)
) -> dict[int, dict[str, Value]]:
    """The scores of each cell's parameters."""
    w_RP = torch.stack(list(w.values()))
    (sums_R,) = work.sums([Evaluation(np.array(list(w)), w_RP, [rows] * len(w))])
    return {
        cell: scores(work.measures, sums) for cell, sums in zip(w, sums_R, strict=True)
    }
