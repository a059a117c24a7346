"""Local training of many clients at once, its engines, and evaluation."""

from raysafl.core.algorithm import ContinuedTraining, LocalTraining
from raysafl.core.component import tell_missing_names
from raysafl.core.rates import (
    CosineRate,
    ListedRate,
    RateSchedule,
    StepRate,
    WarmUpRate,
)

__all__ = [
    "ContinuedTraining",
    "CosineRate",
    "ListedRate",
    "LocalTraining",
    "RateSchedule",
    "StepRate",
    "WarmUpRate",
]
tell_missing_names(__name__)
