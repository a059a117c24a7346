"""What `python -m benchmarks gpu` measures: on a GPU, and with --dry on a CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.workloads import S1, SHORT, TINY, W1, W2, W3, W4, Workload
from experiments.fsl.networks import FslCifarNet
from raysafl.models import CNN, CharLSTM
from raysafl.simulation.run import Run

# One of each kind of network: linear, convolutions, dropout, recurrent (which reads the
# pixels as characters).
MODELS = (
    SHORT,
    SHORT.replace(model=CNN(channels=[8, 16], hidden=32)),
    SHORT.replace(model=FslCifarNet()),
    SHORT.replace(model=CharLSTM(hidden=32)),
)


def rounds_without_tests(run: Run, rounds: int) -> Run:
    """Return a run of so many rounds, of which only the last one is evaluated."""
    return run.replace(rounds=rounds, eval_every=rounds)


@dataclass(frozen=True)
class GpuPlan:
    """What is measured, and how large it is.

    Attributes:
        models: a run of each kind of network, for agreement and determinism.
        models_a_process: how many of them a process trains where engines are compared.
            One, so that a network that breaks the GPU's context takes no other with it.
        workloads: what is compared with the plain loop.
        beside_cpu: the workloads that are timed on one core of the CPU as well.
        by_engine: the run whose rounds each engine takes, with ten clients.
        made_anew: the run whose worker is made anew again and again.
        packed: the runs of which packs are made, by the name of their workload.
        sizes: the numbers of runs in a pack.
        s1: the runs of the sweep S1, a few rounds of each.
        convolved: the run whose local step is computed in several ways.
        tasks: the numbers of tasks that take such a step together.
        shared: the runs of which each process on the GPU has a pack, by the name of their
            workload, with the number of runs in a pack.
        processes: the numbers of processes that share the GPU.
        small: whether rates are measured on small matrices.
    """

    models: Sequence[Run]
    models_a_process: int
    workloads: Mapping[str, Workload]
    beside_cpu: Sequence[str]
    by_engine: Run
    made_anew: Run
    packed: Mapping[str, Run]
    sizes: Sequence[int]
    s1: Sequence[Run]
    convolved: Run
    tasks: Sequence[int]
    shared: Mapping[str, tuple[Run, int]]
    processes: Sequence[int]
    small: bool = False


ON_GPU = GpuPlan(
    models=MODELS,
    models_a_process=1,
    # The plain loop takes 40 to 350 ms a round there, and a turn should take few seconds.
    workloads={
        "W1": replace(W1, run=W1.run.replace(rounds=10)),
        "W2": W2,
        "W3": replace(W3, run=rounds_without_tests(W3.run, 10)),
        "W4": replace(W4, run=rounds_without_tests(W4.run, 30)),
    },
    beside_cpu=("W1",),
    by_engine=rounds_without_tests(W2.run, 12),
    made_anew=W2.run.replace(rounds=1),
    packed={
        "W4": rounds_without_tests(W4.run, 6),
        "W2": rounds_without_tests(W2.run, 4),
    },
    sizes=(1, 4, 16, 64, 256, 1000),
    s1=tuple(run.replace(rounds=8) for run in S1),
    convolved=W2.run,
    tasks=(8, 40),
    shared={
        "W4": (rounds_without_tests(W4.run, 22), 64),
        "W2": (rounds_without_tests(W2.run, 6), 4),
    },
    processes=(1, 2, 4),
)

TINY_CNN = TINY.replace(model=CNN(channels=[4], hidden=8))
# So small that each group takes about a minute on a CPU.
DRY = GpuPlan(
    models=tuple(
        run.replace({"participation.m": 1, "rounds": 1, "eval_every": 1})
        for run in MODELS
    ),
    models_a_process=len(MODELS),
    workloads={
        "W1": Workload(TINY, target=1.0),
        "W2": Workload(TINY_CNN, target=1.0, half=True),
    },
    beside_cpu=("W1",),
    by_engine=rounds_without_tests(TINY_CNN, 4),
    made_anew=TINY_CNN.replace(rounds=1),
    packed={
        "W4": rounds_without_tests(TINY, 4),
        "W2": rounds_without_tests(TINY_CNN, 4),
    },
    sizes=(1, 4),
    s1=(TINY, TINY.replace(seed=9)),
    convolved=TINY_CNN,
    tasks=(2,),
    shared={"W4": (rounds_without_tests(TINY, 4), 4)},
    processes=(1, 2),
    small=True,
)
