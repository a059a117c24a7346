"""`python -m benchmarks scaling`: clients, population, model, replicates, trials, actors, packs.

Each point is a fresh process: a few rounds to warm up, then rounds for some seconds, of
which the median counts. A point is the median over several processes, taken in turns so
that a noisy minute does not fall on one point.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.found import Piece, origin
from benchmarks.job import Job
from benchmarks.processes import Result, chosen, median, together, turns
from benchmarks.rounds import WARM
from experiments.fsl.networks import FslEmnistNet
from raysafl.algorithms import FedAvg
from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import Model
from raysafl.data import Digits, Federation, Mnist, Overlapping
from raysafl.models import MLP, Logistic
from raysafl.participation import Uniform
from raysafl.simulation.run import Run

MODELS: dict[str, Model] = {
    "logistic": Logistic(),
    "MLP 32": MLP(hidden=[32]),
    "MLP 128": MLP(hidden=[128]),
    "MLP 512": MLP(hidden=[512]),
    "MLP 1766": MLP(hidden=[1766]),
    "FslEmnistNet": FslEmnistNet(),
}
# Runs of each pack of several at once.
PACK = 64
DRY_PACK = 3
Point = dict[str, Any]


def workload(
    dry: bool, clients: int = 1000, m: int = 10, model: str = "logistic"
) -> Run:
    """Make a run without evaluation: clients hold 60 samples and take one epoch of them."""
    return Run(
        data=Federation(
            dataset=Digits() if dry else Mnist(),
            clients=clients,
            partition=Overlapping(samples=60),
        ),
        model=MODELS[model],
        algorithm=FedAvg(),
        participation=Uniform(m=m),
        local=LocalTraining(lr=0.1, batch_size=20, epochs=1),
        rounds=10**9,
        eval_every=10**9,
    )


# One round of one client and one step, on digits.
TRIVIAL = workload(dry=True, m=1).replace(
    local=LocalTraining(lr=0.1, batch_size=20, steps=1), rounds=1
)


@dataclass(frozen=True)
class Axis:
    """What is varied.

    Attributes:
        told: what it is measured on.
        points: its points.
        small: the points of a command that is only tried.
        job: makes the job of a point; it is given whether the command is only tried, and
            for how many seconds rounds are timed.
    """

    told: str
    points: Sequence[Any]
    small: Sequence[Any]
    job: Callable[[Any, bool, float], Job]


def in_process(run: Run, seconds: float) -> Job:
    """Return the job of a run in one process."""
    return Job(what="ours", runs=[run], seconds=seconds)


def by_actors(point: str, dry: bool, seconds: float) -> Job:
    """Return the job of a point "model, actors": 0 actors are one process."""
    model, _, actors = point.rpartition(", ")
    run = workload(dry, m=10 if dry else 100, model=model)
    if actors == "0":
        return in_process(run, seconds)
    return Job(what="actors", runs=[run], actors=int(actors), seconds=seconds)


def at_once(packs: int, dry: bool, seconds: float) -> Job:
    """Return the job of so many packs at the same time."""
    copies = packs * (DRY_PACK if dry else PACK)
    run = workload(dry)
    return Job(what="at_once", runs=[run], copies=copies, parts=packs, seconds=seconds)


def reports(count: int) -> Job:
    """Return the job of a sweep of one run that reports so many rounds."""
    run = workload(dry=True, m=1).replace(rounds=count, eval_every=1)
    return Job(what="reports", runs=[run])


AXES = {
    "clients": Axis(
        "Clients a round, of 10,000; logistic regression",
        (10, 32, 100, 316, 1000),
        (2, 4),
        lambda m, dry, s: in_process(workload(dry, clients=10_000, m=m), s),
    ),
    "population": Axis(
        "Clients there are, of which 10 come each round; logistic regression",
        (100, 1000, 10_000, 100_000, 1_000_000),
        (100, 1_000_000),
        lambda n, dry, s: in_process(workload(dry, clients=n), s),
    ),
    "model": Axis(
        "Models of growing size, 10 clients a round",
        tuple(MODELS),
        ("logistic", "MLP 32"),
        lambda name, dry, s: in_process(workload(dry, model=name), s),
    ),
    "replicates": Axis(
        "Replicates in lock-step, each 10 clients a round; logistic regression",
        (1, 2, 4, 8, 16, 32),
        (1, 3),
        lambda r, dry, s: in_process(workload(dry).replace(replicates=r), s),
    ),
    "trials": Axis(
        "Runs in a sweep (one round of one client and one step on digits), MLflow included",
        (1, 10, 100, 1000),
        (1, 2),
        lambda n, dry, s: Job(what="trials", runs=[TRIVIAL], copies=n),
    ),
    "actors": Axis(
        "Client actors of one core, 100 clients a round; 0 is one process without Ray",
        tuple(f"{model}, {n}" for model in ("logistic", "MLP 128") for n in (0, 1, 2)),
        ("logistic, 0", "logistic, 1"),
        by_actors,
    ),
    "packs": Axis(
        "Runs of a pack in lock-step on one client actor, each 10 clients a round; "
        "logistic regression",
        (1, 8, 64, 512),
        (1, 3),
        lambda n, dry, s: Job(what="actors", runs=[workload(dry)], copies=n, seconds=s),
    ),
    "at-once": Axis(
        f"Packs of {PACK} runs at the same time, each with a coordinator and one client actor",
        (1, 2, 3, 4),
        (1, 2),
        at_once,
    ),
    "reports": Axis(
        "Reports of a trial to the driver, of rounds of one client on digits, without MLflow",
        (1, 100, 1000),
        (1, 3),
        lambda n, dry, s: reports(n),
    ),
}


def measures(
    only: Sequence[str], repeats: int, seconds: float, dry: bool
) -> Iterator[Piece]:
    """Measure all points of each axis in turns; each axis has its own origin.

    Args:
        only: the names of the axes; empty: all.
        repeats: the number of processes for each point.
        seconds: for how long rounds are timed in each process.
        dry: whether the points are only tried, on embedded digits.

    Raises:
        ValueError: an axis is unknown, or `repeats` is below 1.
    """
    for name in chosen(only, list(AXES), repeats):
        axis = AXES[name]
        points = list(axis.small if dry else axis.points)
        actions = {
            f"{name} {point}": partial(taken, axis.job(point, dry, seconds))
            for point in points
        }
        where = origin(repeats=repeats)
        every = list(turns(actions, repeats))
        found = [[turn[point] for turn in every] for point in actions]
        yield {name: {"origin": where, "points": points, "taken": found}}


def taken(job: Job) -> Point:
    """Measure a point once, in a fresh process.

    Returns:
        `seconds`, the median of the rounds that count, or the sum of a sweep; and what
        the job tells besides.
    """
    (done,) = together([job])
    return {"seconds": seconds_of(job, done), **done.more}


def seconds_of(job: Job, done: Result) -> float:
    """Return the median of the rounds that count; of a sweep, its seconds."""
    return median(done.seconds[WARM:]) if job.seconds else sum(done.seconds)
