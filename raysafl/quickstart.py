"""The sweep of `raysafl quickstart`: FedAvg and SAFARI on digits, with absent clients.

s of 10 clients never participate, and each client holds p of the 10 classes.
"""

from raysafl.algorithms import SAFARI, FedAvg
from raysafl.core.algorithm import LocalTraining
from raysafl.data import ClassesPerClient, Digits, Federation, IidServer
from raysafl.models import Logistic
from raysafl.participation import Absent
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Table
from raysafl.sweep.definition import Sweep

METHODS = {"FedAvg": FedAvg(), "SAFARI": SAFARI()}
BASE = Run(
    data=Federation(
        dataset=Digits(),
        clients=10,
        partition=ClassesPerClient(p=10),
        server=IidServer(n0=100),
    ),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Absent(s=0, m=5),
    local=LocalTraining(lr=0.1, batch_size=16, epochs=1),
    rounds=60,
    replicates=5,
)
SWEEP = Sweep(
    name="quickstart",
    title="FedAvg against SAFARI on digits: s of 10 clients unavailable, p classes each",
    axes=("s", "algorithm", "p"),
    runs={
        (s, name, p): BASE.replace(
            {"algorithm": algorithm, "participation.s": s, "data.partition.p": p}
        )
        for s in (0, 2, 4)
        for name, algorithm in METHODS.items()
        for p in (10, 2, 1)
    },
    table=Table(rows=["s", "algorithm"], columns=["p"], statistic="last10"),
    notes="Logistic regression; 5 clients a round; the server holds 100 samples; 60 rounds.",
)
