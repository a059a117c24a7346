"""What a model can be trained for: classes, tags, numbers, or a text's next token."""

from raysafl.core.component import tell_missing_names
from raysafl.core.objective import ClientStatistic, Metric, Objective, mean_of
from raysafl.objectives.classification import (
    PLAIN,
    Classification,
    MultiLabel,
    NextToken,
    has_plain_losses,
    is_plain,
)
from raysafl.objectives.regression import Regression

__all__ = [
    "PLAIN",
    "Classification",
    "ClientStatistic",
    "Metric",
    "MultiLabel",
    "NextToken",
    "Objective",
    "Regression",
    "has_plain_losses",
    "is_plain",
    "mean_of",
]
tell_missing_names(__name__)
