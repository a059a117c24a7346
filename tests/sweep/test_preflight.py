"""A cheap round of the user's own classes is tried before Ray starts and anything is written."""

import random
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.mistakes import (
    LINES,
    MISTAKES,
    MODEL_MISTAKES,
    OBJECTIVE_MISTAKES,
    algorithm,
    load,
    model,
    place,
    policy,
)

import raysafl as fl
from raysafl.core.randomness import Key
from raysafl.participation import Full, Trace
from raysafl.sweep import preflight
from raysafl.sweep.user_errors import describe_error


class NoRay(Exception):
    """Ray would have been started."""


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(address: object, preload: str, wait_nodes: int) -> NoReturn:
        raise NoRay

    monkeypatch.setattr("raysafl.sweep.on_ray.tuning.ray_session", start)
    # On a busy machine, small data take longer to load than a sweep waits for them.
    monkeypatch.setattr("raysafl.sweep.new_runs.LOADING_SECONDS", 30)


def go(sweep: fl.Sweep, out: Path, **options: Any) -> None:
    hardware = fl.Hardware(cpus=0.5)
    options = {"executor": "ray", "track": "none", "quiet": True, **options}
    fl.Runner(sweep, out, hardware, **options).run()


def refusal(sweep: fl.Sweep) -> str:
    """What is wrong with the classes of a sweep, tried in this process; empty: nothing."""
    runs = {str(label): run for label, run in sweep.labelled().items()}
    for _, run in preflight.trials_of(runs):
        small = preflight.smoke(run, run.data.load())
        try:
            preflight.try_run(*small)
        except (Exception, SystemExit) as error:
            # Without the frame of this file, which is no user's.
            error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
            return describe_error(error)
    return ""


# Mistakes in the rounds of a run itself are those of tests/simulation/test_users_mistakes.py.
ROUNDS = {
    name: case
    for name, case in MISTAKES.items()
    if "inside" in name or name in ("returns nothing", "repeated numbers")
}
ALL = {**ROUNDS, **MODEL_MISTAKES, **OBJECTIVE_MISTAKES}
# What is not the user's own is not tried.
NOT_TRIED = "targets that are classes"


@pytest.mark.parametrize("name", [name for name in ALL if name != NOT_TRIED])
def test_a_mistake_is_refused_with_the_class_and_the_line(
    name: str, tmp_path: Path
) -> None:
    code, changes, method, sentence = ALL[name]
    said = refusal(load(tmp_path, code, changes))
    assert sentence in said
    if method:
        assert said.startswith(f"{method} ({place(code, LINES[method])}) ")


RAISES = algorithm(
    "update = yield Train(state.w_P, ids)",
    "wrong = ids[0] / 0",
    "return replace(state, w_P=state.w_P - update.delta_MP.mean(0))",
)
LOOPS = algorithm("update = yield Train(state.w_P, ids)", "while True: pass")
CRASHES = algorithm(
    "update = yield Train(state.w_P, ids)",
    "import os, signal",
    "os.kill(os.getpid(), signal.SIGSEGV)",
)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            RAISES,
            f"round ({place(RAISES, 'wrong')}): ZeroDivisionError: division by zero",
        ),
        (
            LOOPS,
            "Mine with the model Logistic did not come to an end within 5 s; it was at "
            f"{place(LOOPS, 'while')}",
        ),
        (
            CRASHES,
            "Mine with the model Logistic ended the process that tried it by SIGSEGV; it was "
            f"at {place(CRASHES, 'os.kill')}",
        ),
    ],
    ids=["raises", "loops", "crashes"],
)
def test_what_fails_hangs_or_ends_its_process_is_named_with_the_run_and_the_way_out(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "SECONDS", 5.0 if code == LOOPS else 30.0)
    with pytest.raises(ValueError) as error:
        go(load(tmp_path, code, "algorithm=Mine()"), tmp_path / "s")
    assert str(error.value) == (
        f"{said}\nThis is a round of the run method=mine, s=0, tried before anything was run "
        "or written; try_first=False (--no-try) leaves that out"
    )
    assert not (tmp_path / "s").exists()


STACKS = algorithm(
    "update = yield TrainMean(state.w_P, ids)",
    "step_P = torch.stack([update.delta_P for i in ids]).mean(0)",
    "return replace(state, w_P=state.w_P - step_P)",
)
ACTS = "    acts_without_clients = True\n    def round(".join(
    algorithm(
        "rows = []",
        "if ids:",
        "    update = yield Train(state.w_P, ids)",
        "    rows = update.delta_MP",
        "return replace(state, w_P=state.w_P - torch.stack([*rows]).mean(0))",
    ).split("    def round(")
)


def test_a_round_without_clients_is_tried_of_those_only_that_act_in_one(
    tmp_path: Path,
) -> None:
    assert refusal(load(tmp_path, STACKS, "algorithm=Mine()")) == ""
    said = refusal(load(tmp_path, ACTS, "algorithm=Mine()"))
    assert said == (
        f"Mine.round ({place(ACTS, 'def round')}) fails in a round without participants, "
        "for which its class says acts_without_clients = True: RuntimeError: stack expects "
        f"a non-empty TensorList ({place(ACTS, 'return replace')})"
    )


PICKS = policy("return state, Cohort(np.random.permutation(num_clients)[:4])")
PICKS_IN_INIT = (
    policy("return state, Cohort(state[:3])")
    + "    def init(self):\n        return torch.randperm(10).tolist()\n"
)
ADDS = algorithm(
    "update = yield TrainMean(state.w_P, ids)",
    "noise_P = torch.randn(len(state.w_P))",
    "return replace(state, w_P=state.w_P - update.delta_P + 0.01 * noise_P)",
)
REMEMBERS = algorithm(
    "update = yield TrainMean(state.w_P, ids)",
    "server = {'mask': torch.from_numpy(np.random.rand(64) < 0.5)}",
    "return State(state.w_P - update.delta_P, server)",
)


DRAWS_IN_INIT = algorithm("yield TrainMean(state.w_P, ids)", "return state") + (
    "    def init(self, w_P, num_clients):\n"
    "        return State(w_P + torch.randn(len(w_P)))\n"
)


@pytest.mark.parametrize(
    ("code", "changes", "method"),
    [
        (PICKS, "participation=Mine()", "pick"),
        (PICKS_IN_INIT, "participation=Mine()", "pick"),
        (ADDS, "algorithm=SAFARI(inner=Mine())", "round"),
        (REMEMBERS, "algorithm=Mine()", "round"),
        (DRAWS_IN_INIT, "algorithm=Mine()", "init"),
    ],
)
def test_what_is_drawn_elsewhere_than_from_the_key_is_refused(
    code: str, changes: str, method: str, tmp_path: Path
) -> None:
    line = place(code, f"def {method}(")
    said = refusal(load(tmp_path, code, changes))
    assert said.startswith(f"Mine.{method} ({line}) has another result each time")
    assert "Draw from `key` alone, as in " in said


IN_PLACE = algorithm(
    "update = yield Train(state.w_P, ids)",
    "state.w_P -= update.delta_MP.mean(0)",
    "return state",
)
KEPT = algorithm(
    "update = yield Train(state.w_P, ids)",
    "self.v = update.delta_MP.mean(0)",
    "return replace(state, w_P=state.w_P - self.v)",
)
LOGARITHM = algorithm(
    "update = yield Train(state.w_P, ids)",
    "return replace(state, w_P=state.w_P - update.delta_MP.mean(0).log())",
)
NO_YIELD = algorithm(
    "update = Train(state.w_P, ids)",
    "return replace(state, w_P=state.w_P - update.delta_MP.mean(0))",
    "yield",
)
OF_A_MEAN = algorithm(
    "update = yield TrainMean(state.w_P, ids)",
    "return replace(state, w_P=state.w_P - update.delta_MP.mean(0))",
)


@pytest.mark.parametrize(
    ("code", "what", "advice"),
    [
        (
            NO_YIELD,
            f"round ({place(NO_YIELD, 'return replace')}): AttributeError: a request",
            "its answer is what `yield` gives, as in update = yield fl.Train(",
        ),
        (
            OF_A_MEAN,
            f"round ({place(OF_A_MEAN, 'return replace')}): AttributeError: ",
            "'MeanUpdate' object has no attribute 'delta_MP'",
        ),
        (
            IN_PLACE,
            f"round ({place(IN_PLACE, 'state.w_P -=')}): FrozenInstanceError",
            "Return a changed copy, such as replace(state, w_P=state.w_P - d)",
        ),
        (
            KEPT,
            f"round ({place(KEPT, 'self.v =')}): ValueError: Mine.v cannot be set",
            "belongs in the State that `round` returns",
        ),
        (
            LOGARITHM,
            f"the updates that Mine.round ({place(LOGARITHM, 'def round')})",
            "look there for a division by 0, a mean of no rows, a log",
        ),
    ],
)
def test_what_an_algorithm_may_not_do_is_told_with_the_line_and_what_to_do_instead(
    code: str, what: str, advice: str, tmp_path: Path
) -> None:
    refused = refusal(load(tmp_path, code, "algorithm=Mine()"))
    assert what in refused and advice in refused
    assert "lower the learning rates" not in refused


SOFTMAX = model(
    "layers = nn.Flatten(), nn.Linear(64, num_classes)",
    "return nn.Sequential(*layers, nn.Softmax(1))",
)


def test_a_softmax_before_the_cross_entropy_is_said_and_not_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"Mine.build ({place(SOFTMAX, 'def build')}) makes outputs that are probabilities"
    right = SOFTMAX.replace("nn.Softmax(1)", "nn.LogSoftmax(1)")
    assert refusal(load(tmp_path, right, "model=Mine()")) == ""
    assert said not in caplog.text
    assert refusal(load(tmp_path, SOFTMAX, "model=Mine()")) == ""
    assert said in caplog.text


def test_a_right_class_passes_what_it_prints_is_no_answer_and_global_random_states_stay(
    tmp_path: Path,
) -> None:
    code = algorithm(
        "print('trying', flush=True)",
        "np.random.rand()",
        "import random",
        "random.random()",
        "torch.rand(3)",
        "update = yield TrainMean(state.w_P, ids)",
        "return replace(state, w_P=state.w_P - update.delta_P)",
    )
    sweep = load(tmp_path, code, "algorithm=SAFARI(inner=Mine())")
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    with pytest.raises(NoRay):
        go(sweep, tmp_path / "s")
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])


def test_runs_of_raysafls_own_components_are_not_tried(
    tiny: fl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*_: object) -> NoReturn:
        raise AssertionError("it was tried")

    monkeypatch.setattr(preflight, "preflight", tried)
    with pytest.raises(NoRay):
        go(fl.Sweep("own", [tiny]), tmp_path / "s")
    with pytest.raises(AssertionError, match="it was tried"):
        go(load(tmp_path, RAISES, "algorithm=Mine()"), tmp_path / "t")


class Mine(fl.FedAvg):
    """FedAvg in a class of the user's own."""

    number: int = 0


class Other(Mine):
    """Another class of the user's own."""


class Odd(Full):
    """A policy of the user's own."""


def test_each_class_is_tried_once_in_the_first_run_that_holds_it(tiny: fl.Run) -> None:
    numbers = {f"a{i}": tiny.replace(algorithm=Mine(number=i)) for i in range(3)}
    policies = {
        f"{name} odd": run.replace(participation=Odd()) for name, run in numbers.items()
    }
    around = tiny.replace(algorithm=fl.SAFARI(inner=Other()))
    trials = preflight.trials_of(numbers | {"d": tiny} | policies | {"e": around})
    assert [label for label, _ in trials] == ["a0", "a0 odd", "e"]
    assert type(trials[-1][1].algorithm) is Other
    assert preflight.named(trials) == "Mine, Odd, Other with the model Logistic"


def test_a_policy_that_names_clients_is_tried_with_their_numbers(
    tiny: fl.Run, tmp_path: Path
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,start,end\nb,0,9\n")
    frame = pd.DataFrame({"x": np.arange(60.0), "y": np.arange(60) % 2})
    frame["who"] = np.where(np.arange(60) < 30, "a", "b")
    source = fl.from_pandas(frame, label="y", client="who", test_share=0.2)
    data = fl.Federation(dataset=source, clients=2, partition=fl.ByColumn(column="who"))
    policy = Trace(file=str(file))
    run = tiny.replace(data=data, participation=policy, algorithm=Mine())
    small, dataset = preflight.smoke(run, run.data.load())
    small, dataset = cloudpickle.loads(cloudpickle.dumps((small, dataset)))
    preflight.try_run(small, dataset)
    (client,) = small.participation.pick(None, 2, Key(0, 0), None)[1].ids
    assert run.policy_on(run.data.load()).pick(None, 2, Key(0, 0), None)[1].ids == [
        client
    ]
