"""Participation policies: which clients take part in which round.

A policy depends on the round and the seed, not on the algorithm. (An adaptive policy
also depends on a training accuracy.) So with the same seed, every algorithm sees the
same cohorts.
"""

from raysafl.core.component import tell_missing_names
from raysafl.core.participation import Cohort, Participation
from raysafl.participation.arbitrary import (
    Arbitrary,
    ArbitraryRates,
    Beta,
    Distribution,
    Gamma,
    RelativeLogNormal,
    ScipyDistribution,
    Weibull,
)
from raysafl.participation.processes import Bernoulli, Cyclic, Markov, MinimumSeparation
from raysafl.participation.sampling import Absent, Full, Uniform
from raysafl.participation.snapshot import Snapshot
from raysafl.participation.trace import Trace
from raysafl.participation.varying import (
    Factor,
    Sine,
    Steps,
    Varying,
    diurnal,
    rates_by_labels,
)

__all__ = [
    "Absent",
    "Arbitrary",
    "ArbitraryRates",
    "Bernoulli",
    "Beta",
    "Cohort",
    "Cyclic",
    "Distribution",
    "Factor",
    "Full",
    "Gamma",
    "Markov",
    "MinimumSeparation",
    "Participation",
    "RelativeLogNormal",
    "ScipyDistribution",
    "Sine",
    "Snapshot",
    "Steps",
    "Trace",
    "Uniform",
    "Varying",
    "Weibull",
    "diurnal",
    "rates_by_labels",
]
tell_missing_names(__name__)
