from . import algorithms, data, models, objectives, participation, training
from .algorithms import FSL, SAFARI, FedAvg
from .cluster.hardware import Hardware
from .core.algorithm import Algorithm, LocalTraining, Train, TrainMean
from .core.objective import Objective
from .core.participation import Cohort, Participation
from .core.problem import Model
from .data import (
    ByColumn,
    ClassesPerClient,
    Digits,
    Dirichlet,
    Federation,
    Iid,
    IidServer,
    Validation,
    from_arrays,
    from_csv,
    from_pandas,
    from_parquet,
    from_torch,
)
from .kept.load import load_model
from .models import CNN, MLP, Logistic
from .participation import Absent, Snapshot, Uniform
from .report.results import load
from .simulation.devices import Devices
from .simulation.per_client import PerClient
from .simulation.run import Patience, Run
from .storage.manifest import Table
from .sweep.definition import Sweep
from .sweep.grid import grid
from .sweep.on_ray.trainable import trainable
from .sweep.runner import Runner
from .sweep.simulate import simulate
from .version import __version__

__all__ = [
    "CNN",
    "FSL",
    "MLP",
    "SAFARI",
    "Absent",
    "Algorithm",
    "ByColumn",
    "ClassesPerClient",
    "Cohort",
    "Devices",
    "Digits",
    "Dirichlet",
    "FedAvg",
    "Federation",
    "Hardware",
    "Iid",
    "IidServer",
    "LocalTraining",
    "Logistic",
    "Model",
    "Objective",
    "Participation",
    "Patience",
    "PerClient",
    "Run",
    "Runner",
    "Snapshot",
    "Sweep",
    "Table",
    "Train",
    "TrainMean",
    "Uniform",
    "Validation",
    "__version__",
    "algorithms",
    "data",
    "from_arrays",
    "from_csv",
    "from_pandas",
    "from_parquet",
    "from_torch",
    "grid",
    "load",
    "load_model",
    "models",
    "objectives",
    "participation",
    "simulate",
    "trainable",
    "training",
]
