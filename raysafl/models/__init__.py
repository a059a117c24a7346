"""Models: recipes for modules, and any module as one flat vector (`FlatModel`).

A model of your own is a class with a `build`; it may stand in your own file.

Example:
    >>> import math
    >>> import raysafl as fl
    >>> from torch import nn
    >>> class TwoLayers(fl.Model):
    ...     units: int = 16
    ...
    ...     def build(self, input_shape, num_classes):
    ...         first = nn.Linear(math.prod(input_shape), self.units)
    ...         last = nn.Linear(self.units, num_classes)
    ...         return nn.Sequential(nn.Flatten(), first, nn.Tanh(), last)
    >>> TwoLayers(units=8).to_json()
    '{"kind":"TwoLayers","precision":"float32","units":8}'
"""

from raysafl.core.component import tell_missing_names
from raysafl.core.problem import Model
from raysafl.models.basic import (
    CNN,
    MLP,
    BagOfWords,
    CharLSTM,
    LeNet,
    Logistic,
    ResNet18,
    ResNet20,
)
from raysafl.models.flat import FlatModel
from raysafl.models.layers import Dropout

__all__ = [
    "CNN",
    "MLP",
    "BagOfWords",
    "CharLSTM",
    "Dropout",
    "FlatModel",
    "LeNet",
    "Logistic",
    "Model",
    "ResNet18",
    "ResNet20",
]
tell_missing_names(__name__)
