"""The trial before a sweep: a cheap round of each of the user's own classes.

It takes place before Ray starts and before the folder is touched, so that a mistake in
an algorithm, a policy, a model or an objective costs seconds and not a night. A class
may also hang or end the process that calls it, so it is tried in a process of its own.
`faulthandler` ends that process where a class takes too long, even inside of compiled
code, and says at which line that was.
"""

import faulthandler
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import torch

from raysafl.core.algorithm import Algorithm, MeanUpdate, Update
from raysafl.core.component import Component, is_users_class, method_name, users_parts
from raysafl.core.participation import Participation
from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.core.work import Tasks, Training
from raysafl.data.federation import Federation
from raysafl.data.partitions import Overlapping
from raysafl.data.server_data import IidServer
from raysafl.participation import Bernoulli
from raysafl.runtime.in_process import Worker
from raysafl.simulation.checkpoint import dump, save
from raysafl.simulation.replicates import LOWER_RATES
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.redaction import redacted
from raysafl.sweep.code import ship_user_code
from raysafl.sweep.prepare import dataset_of, prepare
from raysafl.sweep.progress import Display
from raysafl.sweep.user_errors import describe_error, errors_described, innermost_line

# A trial may take so many seconds.
SECONDS = 30.0
# So many samples there are.
TRAIN = 64
TEST = 16
# So many clients of a cohort train for so many steps; the others are answered alike.
CLIENTS = 2
STEPS = 2
BATCH_SIZE = 8
# So often the clients of round 0 are picked, which must be the same ones each time.
PICKS = 4
# What the other process writes: that a trial begins, its refusal, that all went well.
BEGUN = "\x1etrial "
REFUSED = "\x1erefused "
DONE = "\x1edone"
WAY_OUT = "try_first=False (--no-try) leaves that out"
# A terminal's Ctrl-C ends that process, too, without a word.
START = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
from raysafl.sweep.preflight import answer_trials
answer_trials()
"""


def trials_of(runs: Mapping[str, Run]) -> list[tuple[str, Run]]:
    """Return runs, with their labels, in which each of the user's own classes is once.

    `SAFARI(inner=Mine())` may not call `Mine` in its first round, so `Mine` is tried in
    its place. How data are made and spread is not tried.

    Args:
        runs: The runs to do, by their labels as text.
    """
    tried: set[type] = set()
    trials = []
    for label, whole in runs.items():
        algorithms = users_parts(whole.algorithm, Algorithm) or [whole.algorithm]
        policies = users_parts(whole.participation, Participation)
        for pair in product(algorithms, policies or [whole.participation]):
            if tried.issuperset(_users_classes(whole)):
                break
            run = whole.replace(algorithm=pair[0], participation=pair[1])
            if not tried.issuperset(_users_classes(run)):
                trials.append((label, run))
                tried |= _users_classes(run)
    return trials


def named(trials: Iterable[tuple[str, Run]]) -> str:
    """Name the user's own classes in some trials, and the models that are not."""
    kinds = {kind for _, run in trials for kind in _users_classes(run)}
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    models = {type(run.model) for _, run in trials} - kinds
    others = " or ".join(sorted(model.__name__ for model in models))
    return f"{names} with the model {others}" if others else names


def _users_classes(run: Run) -> set[type]:
    """Return the user's own classes in a run, but for those of its data."""
    parts = (run.model, run.objective, run.algorithm, run.participation, run.local)
    kinds = {type(component) for part in parts for component in part.components()}
    return set(filter(is_users_class, kinds))


def preflight(runs: Mapping[str, Run], display: Display) -> dict[str, Dataset]:
    """Have the user's own classes tried by another process.

    That process imports raysafl while the data are loaded.

    Args:
        runs: The runs to do, by their labels as text.
        display: Shows what is tried.

    Returns:
        The datasets of the runs that were tried, by `source_key`; none if the user's own
        classes make data alone.

    Raises:
        ValueError: A class is wrong, does not end, or ended the process. The message
            names it, and the file and the line if they are known.
    """
    datasets: dict[str, Dataset] = {}
    if not (trials := trials_of(runs)):
        return datasets
    with subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            with errors_described():
                small = [smoke(run, dataset_of(run, datasets)) for _, run in trials]
            display.enter(f"trying a round of {named(trials)}")
            answer, _ = process.communicate(_pickled(small))
        finally:
            process.kill()
    if said := _refused(trials, answer.decode(errors="replace"), process.returncode):
        raise ValueError(f"{said}, tried before anything was run or written; {WAY_OUT}")
    return datasets


def smoke(run: Run, dataset: Dataset) -> tuple[Run, Dataset]:
    """Return a run of one replicate on few samples, without what is not tried."""
    inside = len(dataset.train) - dataset.outside
    rows = np.linspace(0, inside - 1, TRAIN).astype(np.int64)
    tests = np.linspace(0, len(dataset.test) - 1, TEST).astype(np.int64)
    data = Federation(
        clients=run.data.clients,
        partition=Overlapping(samples=BATCH_SIZE),
        server=IidServer(n0=BATCH_SIZE) if run.data.has_server_data else None,
    )
    changes = dict.fromkeys(("keep", "patience", "eval_clients", "devices"))
    policy = run.policy_on(dataset)
    run = run.replace(changes, data=data, participation=policy, replicates=1)
    train = dataset.train.take(rows)
    return run, replace(dataset, train=train, test=dataset.test.take(tests), outside=0)


def _pickled(small: Sequence[tuple[Run, Dataset]]) -> bytes:
    try:
        ship_user_code((p for run, _ in small for p in run.components()), cloudpickle)
        pickled: bytes = cloudpickle.dumps((SECONDS, small))
    except Exception as error:
        raise ValueError(
            "the classes of the sweep cannot be sent to another process, which would try a "
            f"round: {type(error).__name__}: {error}; {WAY_OUT}"
        ) from error
    return pickled


def _refused(trials: Sequence[tuple[str, Run]], answer: str, code: int) -> str:
    """Return why the other process refused a trial, or what was tried when it ended.

    Args:
        trials: The trials.
        answer: What it wrote, `faulthandler` included.
        code: Its exit code.
    """
    if answer.endswith(DONE):
        return ""
    number, _, said = answer.rpartition(BEGUN)[2].partition("\n")
    label, run = trials[int(number or 0)]
    what = said.removeprefix(REFUSED)
    if what == said:
        how = f"ended the process that tried it, exit code {code}"
        if "Timeout (" in said:
            how = f"did not come to an end within {SECONDS:g} s"
        elif code < 0:
            how = f"ended the process that tried it by {signal.Signals(-code).name}"
            how += " (out of memory?)" if code == -signal.SIGKILL else ""
        at = f"; it was at {line}" if (line := innermost_line(said)) else ""
        what = f"{named([(label, run)])} {how}{at}"
    return f"{what}\nThis is a round of the run {label}"


# What the other process does


class BriefWorker(Worker):
    """A `Worker` with one cell, of which few clients train, for few steps."""

    def train(self, asked: Sequence[Training]) -> list[Update | MeanUpdate]:
        """Train the first clients briefly, and answer the others like them."""
        (training,) = asked
        (usual,) = training.locals
        size = min(usual.batch_size, BATCH_SIZE)
        local = usual.replace(epochs=None, steps=STEPS, batch_size=size)
        few = Tasks.of([training._replace(locals=[local])])[:CLIENTS]
        trained = self.trainer.train(few)
        clients = training.clients_RM.size
        alike_M = torch.arange(clients) % len(few)
        rows = Update(*(column[alike_M][None] for column in trained))
        if training.averaged:
            return [MeanUpdate(trained.delta_MP.mean(0)[None], *rows[1:])]
        return [rows]


def answer_trials() -> NoReturn:
    """Carry out the trials that come by stdin, and write to stdout how they went."""
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    # What the user's own code prints is no answer.
    os.dup2(2, 1)
    faulthandler.enable(answer)
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=answer)
    # The driver will warn of the same.
    logging.disable()
    torch.set_num_threads(1)
    seconds, small = pickle.load(sys.stdin.buffer)
    for number, (run, dataset) in enumerate(small):
        answer.write(f"{BEGUN}{number}\n")
        faulthandler.dump_traceback_later(seconds, exit=True, file=answer)
        try:
            try_run(run, dataset)
        # The user's own code may call `sys.exit`.
        except (Exception, SystemExit) as error:
            answer.write(REFUSED + redacted(describe_error(error)))
            break
    else:
        answer.write(DONE)
    answer.flush()
    # Threads of the user's own are not waited for.
    os._exit(0)


def try_run(run: Run, dataset: Dataset) -> None:
    """Carry out a round of a run twice, and one without participants.

    Args:
        run: A run of one replicate.
        dataset: Its dataset.

    Raises:
        ValueError: What the run's classes do or return is wrong, or differs from one time
            to the other.
        Exception: What they raise.
    """
    prepare([run], loaded={run.data.source_key: dataset})
    # The engine "loop" needs no measurement.
    work = BriefWorker(
        run.cells, dataset, run.model, engine="loop", objective=run.objective
    )
    policy = run.participation
    begun = set()
    ended = set()
    for _ in range(2):
        simulation = Simulation(run, work)
        (replicate,) = simulation.replicates
        begun.add(dump({run.id: save(replicate)}))
        simulation.step()
        ended.add(dump({run.id: save(replicate)}))
        if replicate.diverged and not replicate.diverged.endswith(LOWER_RATES):
            raise ValueError(replicate.diverged)
    if is_users_class(type(policy)):
        asked = (run.data.clients, Key(run.seed), None)
        picks = {repr(policy.pick(policy.init(), *asked)) for _ in range(PICKS)}
        _refuse_chance(policy, Participation, "pick", picks)
    if is_users_class(type(run.algorithm)):
        _refuse_chance(run.algorithm, Algorithm, "init", begun)
        _refuse_chance(run.algorithm, Algorithm, "round", ended)
        if run.algorithm.acts_without_clients:
            _try_without_clients(Simulation(run, work), run.algorithm)


def _refuse_chance(
    component: Component, family: type[Component], method: str, results: set[Any]
) -> None:
    """Refuse a method that has had different results for the same arguments."""
    if len(results) > 1:
        raise ValueError(
            f"{method_name(component, family, method)} has another result each time that "
            "it is called with the same arguments. Draw from `key` alone, as in "
            'key("participants").choice(num_clients, 3, replace=False) or '
            'torch.randn(size, generator=key.torch("noise")), draw nothing in `init`, and '
            "remember nothing outside of the state"
        )


def _try_without_clients(simulation: Simulation, algorithm: Algorithm) -> None:
    """Carry out a round without participants, of an algorithm that acts in one."""
    simulation.replicates[0].participation = Bernoulli(rate=1e-12)
    try:
        simulation.step()
    except Exception as error:
        raise ValueError(
            f"{method_name(algorithm, Algorithm, 'round')} fails in a round without "
            "participants, for which its class says acts_without_clients = True: "
            f"{type(error).__name__}: {error}"
        ) from error
