"""Integer inputs (text) reach the model as they are."""

import numpy as np
import torch

from raysafl.core.problem import Samples
from raysafl.training.inputs import Inputs


def test_tokens_stay_integers_and_unscaled() -> None:
    x = np.random.default_rng(0).integers(0, 90, (12, 80))
    inputs = Inputs(
        Samples(x, np.arange(12), scale=1 / 255, shift=-0.5), torch.device("cpu")
    )
    index_TB = torch.tensor([[3, 0], [11, 3]])
    x_TB, y_TB = inputs.at(index_TB)
    assert x_TB.dtype == torch.int64 and x_TB.shape == (2, 2, 80)
    assert np.array_equal(x_TB, x[index_TB.numpy()]) and torch.equal(y_TB, index_TB)
    assert np.array_equal(inputs.span(4, 9)[0], x[4:9])
