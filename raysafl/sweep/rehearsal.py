"""The rehearsal: one cheap round of the runs that hold code of the user's own.

It takes place before Ray starts and before the folder is touched, so that a mistake in
an algorithm, a policy, a model or a dataset costs seconds and not a night.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from raysafl.core.algorithm import Algorithm, LocalTraining, MeanUpdate, Update
from raysafl.core.component import Component
from raysafl.core.objective import Measures, Metric, measures_of
from raysafl.core.participation import Participation
from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.core.users_parts import is_users_class, method_name, users_parts
from raysafl.core.work import (
    Floats,
    GroupSums,
    Rows,
    RowsOfCells,
    Summed,
    Tasks,
    Trained,
    Training,
    WeightedRows,
)
from raysafl.runtime.in_process import Worker
from raysafl.simulation.checkpoint import dump, replicates_in
from raysafl.simulation.checks import checked_pick
from raysafl.simulation.replicate import LOWER_RATES
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.redaction import redacted
from raysafl.sweep.objective_check import try_model
from raysafl.sweep.user_errors import describe_error

# No further round is tried after so many seconds.
SECONDS = 5.0
# So many clients of a cohort train; the others are answered alike.
CLIENTS = 4
STEPS = 2
BATCH_SIZE = 8
# So often the clients of round 0 are picked, which must be the same ones each time.
PICKS = 4
# So few parameters may move alike by chance.
FEW_PARAMETERS = 10


def needs_rehearsal(run: Run) -> bool:
    """Return whether a run holds a component of a class that is not raysafl's own."""
    return any(is_users_class(type(component)) for component in run.components())


def rehearse(
    runs: Mapping[str, Run], datasets: Mapping[str, Dataset], engine: str = "auto"
) -> None:
    """Try one cheap round of each distinct (data, model, objective, algorithm, policy).

    Runs of raysafl's own components only are left out. Combinations of classes that
    have not been tried come first, since there may be more runs than there is time for.
    The global random states are left as they were.

    Args:
        runs: the runs to do, by their labels as text.
        datasets: the loaded datasets, by the `source_key` of the data that load them.
        engine: the engine that computes gradients; "auto" takes the engine "loop",
            which needs no measurement.

    Raises:
        ValueError: a round failed; the message names the class, the file and the line.
    """
    began = time.monotonic()
    with _same_random_state():
        for label, run in _combinations(runs):
            if time.monotonic() - began > SECONDS:
                return
            try:
                _try(run, datasets[run.data.source_key], engine)
            # The user's own code may call `sys.exit`.
            except (Exception, SystemExit) as error:
                said = redacted(describe_error(error, list(run.components())))
                raise ValueError(
                    f"{said}\nThis is a round of the run {label}, tried before anything "
                    "was run or written; --no-try leaves that out"
                ) from error


class BriefWorker(Worker):
    """A `Worker` with one cell, whose answers have the right shapes and cost next to nothing.

    A few clients take a few steps, and the others are answered alike. Nothing is
    evaluated.
    """

    def train(self, asked: Sequence[Training]) -> dict[int, Trained]:
        """Train the first few clients briefly, and answer the others like them."""
        (own,) = asked
        for client in own.clients:
            self.population.held(own.cell, client)
        few = Tasks.of([own._replace(local=_a_few_steps(own.local))])[:CLIENTS]
        trained = self.trainer.train(few)
        alike_M = torch.arange(len(own.clients)) % len(few)
        _, *numbers = (column[alike_M] for column in trained)
        update: Update | MeanUpdate = Update(trained.delta_MP[alike_M], *numbers)
        if own.averaged:
            update = MeanUpdate(trained.delta_MP.mean(0), *numbers)
        return {own.cell: Trained(update, len(alike_M), len(alike_M), 0.5, 0.5)}

    @property
    def measures(self) -> Measures:
        """Measures of which each is 0.5, whatever the sums are."""
        names = measures_of(self.trainer.objective, self.trainer.model.num_outputs)
        half = Metric("0.5", sums=lambda _, y: y[:1], value=lambda sums, count: 0.5)
        return Measures(dict.fromkeys(names, half), dict.fromkeys(names, 1))

    def sums(self, w: Mapping[int, Tensor], over: RowsOfCells) -> Summed:
        """Return sums without an evaluation."""
        return {
            cell: {r: self._zeros(cell, r) for r in own} for cell, own in over.items()
        }

    def _zeros(self, cell: int, rows: Rows) -> GroupSums:
        size_G = self.rows.sizes(cell, rows)
        return GroupSums(size_G, np.zeros((len(size_G), len(self.measures.sizes))))

    def personal_sums(
        self, asked: Sequence[Training], over: Sequence[WeightedRows]
    ) -> dict[int, Floats]:
        """Return sums for each client without a training."""
        return {asked[0].cell: np.zeros((len(over), len(self.measures.sizes)))}


def _a_few_steps(local: LocalTraining) -> LocalTraining:
    batch_size = min(local.batch_size, BATCH_SIZE)
    return local.replace(epochs=None, steps=STEPS, batch_size=batch_size)


def _try(run: Run, dataset: Dataset, engine: str) -> None:
    """Run a round of one replicate, and make the checkpoint after it."""
    # Its answers are no measurements by which a run could stop or keep a model.
    run = run.replace(keep=None, patience=None)
    work = BriefWorker(
        run.cells,
        dataset,
        run.model,
        engine="loop" if engine == "auto" else engine,
        objective=run.objective,
    )
    try_model(run.model, work.trainer.model, dataset)
    simulation = Simulation(run, work)
    (own,) = simulation.replicates
    before_P = own.w_P.clone()
    begun = dump(simulation)
    simulation.step()
    if own.diverged and not own.diverged.endswith(LOWER_RATES):
        raise ValueError(own.diverged)
    _refuse_a_number(run.algorithm, own.w_P - before_P)
    saved = dump(simulation)
    if is_users_class(type(run.participation)):
        _refuse_other_picks(own.participation, run)
    if is_users_class(type(run.algorithm)):
        again = Simulation(run, work)
        if not _are_alike(begun, dump(again)):
            raise ValueError(
                f"{method_name(run.algorithm, Algorithm, 'init')} returns another State each "
                "time. It must draw nothing: draw in round 0, from `key`"
            )
        again.step()
        if not _are_alike(saved, dump(again)):
            raise ValueError(
                f"{method_name(run.algorithm, Algorithm, 'round')} returns another State "
                "when it is called again with the same state, updates and key. Draw from "
                '`key` alone, as in torch.randn(size, generator=key.torch("my noise")), and '
                "remember nothing outside of the State"
            )


def _are_alike(saved: bytes, again: bytes) -> bool:
    """Whether two simulations of one replicate are in the same state, up to rounding.

    Products of the user's own may differ in their last bits with the place in memory.
    """
    (one,), (other,) = map(replicates_in, (saved, again))
    if one is None or other is None:
        return one is other
    # Unlike ==, the texts are equal where both have NaN.
    return json.dumps(one.values) == json.dumps(other.values) and all(
        torch.allclose(
            tensor.double(), other.tensors[name].double(), 1e-3, 1e-6, equal_nan=True
        )
        for name, tensor in one.tensors.items()
    )


def _refuse_other_picks(policy: Participation, run: Run) -> None:
    """Refuse a policy that goes by more than its state and the key."""

    def picked() -> str:
        clients = run.data.clients
        first = policy.pick(policy.init(), clients, Key(run.seed), None)
        return repr(checked_pick(policy, first, clients, 0))

    if len({picked() for _ in range(PICKS)}) > 1:
        raise ValueError(
            f"{method_name(policy, Participation, 'pick')} returns another cohort or state "
            "when it is called again with the same state and key, so that algorithms would "
            'see different cohorts. Draw from `key` alone, as in key("who comes").choice('
            "num_clients, 3, replace=False), draw nothing in `init`, and remember nothing outside "
            "of the state"
        )


def _refuse_a_number(algorithm: Algorithm, moved_P: Tensor) -> None:
    """Refuse an algorithm of the user's own that subtracts one number from all parameters."""
    step = float(moved_P.mean())
    if (
        is_users_class(type(algorithm))
        and len(moved_P) >= FEW_PARAMETERS
        and step != 0
        and float((moved_P - step).abs().max()) < abs(step) / 100
    ):
        raise ValueError(
            f"{method_name(algorithm, Algorithm, 'round')} moves each of the {len(moved_P)} "
            f"parameters by the same number, {step:.3g}; each needs one of its own: "
            "update.delta_MP.mean() is a number, and update.delta_MP.mean(0) has one for each"
        )


def _combinations(runs: Mapping[str, Run]) -> list[tuple[str, Run]]:
    """Return what to try, one replicate each: new combinations of classes first."""
    distinct: dict[tuple[str, ...], tuple[str, Run]] = {}
    for label, run in runs.items():
        for own in _users_own(run) if needs_rehearsal(run) else []:
            parts = (own.data, own.model, own.objective, own.algorithm)
            key = tuple(part.to_json() for part in (*parts, own.participation))
            distinct.setdefault(key, (label, own.replace(replicates=1)))

    seen = Counter[tuple[type[Component], ...]]()
    ranked = []
    for label, run in distinct.values():
        classes = tuple(type(component) for component in run.components())
        ranked.append((seen[classes], label, run))
        seen[classes] += 1
    ranked.sort(key=lambda item: item[0])
    return [(label, run) for _, label, run in ranked]


def _users_own(run: Run) -> Iterator[Run]:
    """Yield the run with the user's own algorithms and policies taken by themselves.

    `SAFARI(inner=Mine())` may not call `Mine` in its first round, so `Mine` is tried in
    its place.
    """
    algorithms = users_parts(run.algorithm, Algorithm) or [run.algorithm]
    policies = users_parts(run.participation, Participation) or [run.participation]
    for algorithm in algorithms:
        for policy in policies:
            yield run.replace(algorithm=algorithm, participation=policy)


@contextmanager
def _same_random_state() -> Iterator[None]:
    """Leave the global random states of Python, numpy and torch as they were."""
    python = random.getstate()
    numpy = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
