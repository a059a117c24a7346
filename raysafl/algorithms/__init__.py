"""Algorithms: what the server does with the clients' updates. One short file per paper."""

from raysafl.algorithms.afl import AFL
from raysafl.algorithms.amplified_scaffold import AmplifiedSCAFFOLD
from raysafl.algorithms.baselines import Centralised, ServerOnly
from raysafl.algorithms.bases import Around, KnowsLocalTraining
from raysafl.algorithms.cafed import CAFed
from raysafl.algorithms.compressed import Compressed, Compression, Quantised, TopK
from raysafl.algorithms.debiased import DebiasedFedAvg
from raysafl.algorithms.f3ast import F3AST
from raysafl.algorithms.fedamplify import FedAmplify
from raysafl.algorithms.fedau import FedAU
from raysafl.algorithms.fedavg import FedAvg, FedAvgM, FedProx
from raysafl.algorithms.fedawe import FedAWE
from raysafl.algorithms.feddyn import FedDyn
from raysafl.algorithms.fedlaavg import FedLaAvg
from raysafl.algorithms.fedopt import FedAdagrad, FedAdam, FedOpt, FedYogi
from raysafl.algorithms.fedvarp import FedVARP
from raysafl.algorithms.focus import FOCUS
from raysafl.algorithms.fsl import FSL, FSLParallel
from raysafl.algorithms.mifa import MIFA
from raysafl.algorithms.oort import Oort
from raysafl.algorithms.safari import SAFARI
from raysafl.algorithms.scaffold import SCAFFOLD
from raysafl.algorithms.scheduled import ScheduledServer
from raysafl.algorithms.selection import PowerOfChoice, Selected, Selection
from raysafl.core.algorithm import (
    Algorithm,
    CountSamples,
    MeanUpdate,
    Round,
    Setting,
    State,
    Train,
    TrainMean,
    Update,
)
from raysafl.core.component import tell_missing_names
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Key

__all__ = [
    "AFL",
    "EVERYONE",
    "F3AST",
    "FOCUS",
    "FSL",
    "MIFA",
    "SAFARI",
    "SCAFFOLD",
    "SERVER",
    "Algorithm",
    "AmplifiedSCAFFOLD",
    "Around",
    "CAFed",
    "Centralised",
    "Compressed",
    "Compression",
    "CountSamples",
    "DebiasedFedAvg",
    "FSLParallel",
    "FedAU",
    "FedAWE",
    "FedAdagrad",
    "FedAdam",
    "FedAmplify",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedLaAvg",
    "FedOpt",
    "FedProx",
    "FedVARP",
    "FedYogi",
    "Key",
    "KnowsLocalTraining",
    "MeanUpdate",
    "Oort",
    "PowerOfChoice",
    "Quantised",
    "Round",
    "ScheduledServer",
    "Selected",
    "Selection",
    "ServerOnly",
    "Setting",
    "State",
    "TopK",
    "Train",
    "TrainMean",
    "Update",
]
tell_missing_names(__name__)
