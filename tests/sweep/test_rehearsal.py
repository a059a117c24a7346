"""A cheap round of the user's own classes is tried before Ray starts and anything is written."""

import random
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from helpers.folders import contents
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
    write,
)
from ray import tune

from raysafl import FedAvg, Hardware, Run, Runner, Sweep
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep import attempt, rehearsal
from raysafl.sweep.experiment_file import load_sweep


class NoRay(Exception):
    """Ray would have been started."""


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(address: object, preload: str) -> NoReturn:
        raise NoRay

    monkeypatch.setattr("raysafl.sweep.on_ray.tuning.ray_session", start)


def go(sweep: Sweep, out: Path, **options: Any) -> None:
    hardware = Hardware(cpus=0.5)
    options = {"executor": "ray", "track": "none", "quiet": True, **options}
    Runner(sweep, out, hardware, **options).run()


ALL = {**MISTAKES, **MODEL_MISTAKES, **OBJECTIVE_MISTAKES}


@pytest.mark.parametrize("name", ALL)
def test_a_mistake_is_found_before_ray_starts_and_leaves_no_folder(
    name: str, tmp_path: Path
) -> None:
    code, changes, method, sentence = ALL[name]
    sweep = load(tmp_path, code, changes)
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        go(sweep, tmp_path / "out" / "s")
    assert not (tmp_path / "out").exists()
    if method:
        expected = f"{method} ({place(code, LINES[method])}) "
        assert str(error.value).startswith(expected)


RAISES = algorithm(
    "update = yield Train(state.w_P, ids)",
    "wrong = ids[0] / 0",
    "return replace(state, w_P=state.w_P - update.delta_MP.mean(0))",
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


@pytest.mark.parametrize(
    ("code", "changes", "said"),
    [
        (
            PICKS,
            "participation=Mine()",
            "Mine.pick ({}) returns another cohort or state",
        ),
        (
            PICKS_IN_INIT,
            "participation=Mine()",
            "Mine.pick ({}) returns another cohort",
        ),
        (
            PICKS,
            "participation=Snapshot(base=Mine(), uniform=Full(), snapshot_prob=1.0)",
            'Draw from `key` alone, as in key("who comes").choice(',
        ),
        (ADDS, "algorithm=Mine()", "Mine.round ({}) returns another State when it is"),
        (ADDS, "algorithm=SAFARI(inner=Mine())", "generator=key.torch("),
        (REMEMBERS, "algorithm=Mine()", "Mine.round ({}) returns another State"),
    ],
)
def test_what_is_drawn_elsewhere_than_from_the_key_is_refused(
    code: str, changes: str, said: str, tmp_path: Path
) -> None:
    line = place(code, "def pick" if "def pick" in code else "def round")
    with pytest.raises(ValueError, match=re.escape(said.format(line))):
        go(load(tmp_path, code, changes), tmp_path / "s")


def test_a_draw_in_init_is_told_as_one(tmp_path: Path) -> None:
    code = algorithm("yield TrainMean(state.w_P, ids)", "return state") + (
        "    def init(self, w_P, num_clients):\n"
        "        return State(w_P + torch.randn(len(w_P)))\n"
    )
    with pytest.raises(ValueError, match=r"Mine.init .* draw nothing: draw in round 0"):
        go(load(tmp_path, code, "algorithm=Mine()"), tmp_path / "s")


def test_what_is_drawn_from_the_key_passes(tmp_path: Path) -> None:
    picks = PICKS.replace("np.random.", "key('cohort').")
    adds = ADDS.replace("P))", "P), generator=key.torch('noise'))")
    code = picks.replace("Mine", "Picks") + adds
    with pytest.raises(NoRay):
        changes = "algorithm=Mine(), participation=Picks()"
        go(load(tmp_path, code, changes), tmp_path / "s")


def test_an_error_names_the_class_the_file_the_line_and_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ZeroDivisionError") as error:
        go(load(tmp_path, RAISES, "algorithm=Mine()"), tmp_path / "s")
    said = str(error.value)
    assert said.startswith(f"Mine ({place(RAISES, 'wrong')}): ZeroDivisionError: ")
    assert "of the run method=mine, s=0, tried before anything" in said
    assert "try_first=False leaves that out" in said
    with pytest.raises(ValueError, match="--no-try leaves that out"):
        go(load(tmp_path, RAISES, "algorithm=Mine()"), tmp_path / "s", command="run")


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
A_NUMBER = algorithm(
    "update = yield Train(state.w_P, ids)",
    "return replace(state, w_P=state.w_P - update.delta_MP.mean())",
)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            NO_YIELD,
            f"Mine ({place(NO_YIELD, 'return replace')}): AttributeError: a request",
        ),
        (NO_YIELD, "its answer is what `yield` gives, as in update = yield fl.Train("),
        (
            OF_A_MEAN,
            f"Mine ({place(OF_A_MEAN, 'return replace')}): AttributeError: the answer to "
            "fl.TrainMean has no 'delta_MP': it has the mean, delta_P",
        ),
        (
            A_NUMBER,
            f"Mine.round ({place(A_NUMBER, 'def round')}) moves each of the 650 ",
        ),
        (A_NUMBER, "update.delta_MP.mean(0) has one for each"),
        (IN_PLACE, f"Mine ({place(IN_PLACE, 'state.w_P -=')}): FrozenInstanceError"),
        (IN_PLACE, "Return a changed copy, such as replace(state, w_P=state.w_P - d)"),
        (KEPT, f"Mine ({place(KEPT, 'self.v =')}): ValueError: Mine.v cannot be set"),
        (KEPT, "belongs in the State that `round` returns"),
        (LOGARITHM, f"the updates that Mine.round ({place(LOGARITHM, 'def round')})"),
        (LOGARITHM, "look there for a division by 0, a mean of no rows, a log"),
    ],
)
def test_what_an_algorithm_may_not_do_is_told_with_the_line_and_what_to_do_instead(
    code: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        go(load(tmp_path, code, "algorithm=Mine()"), tmp_path / "s")
    assert "lower the learning rates" not in str(error.value)


SOFTMAX = model(
    "layers = nn.Flatten(), nn.Linear(64, num_classes)",
    "return nn.Sequential(*layers, nn.Softmax(1))",
)


@pytest.mark.parametrize("last", ["nn.Softmax(1)", "nn.ReLU()", "nn.LogSoftmax(1)"])
def test_a_softmax_before_the_cross_entropy_is_said_and_not_refused(
    last: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = SOFTMAX.replace("nn.Softmax(1)", last)
    # The sweep got as far as Ray.
    with pytest.raises(NoRay):
        go(load(tmp_path, code, "model=Mine()"), tmp_path / "s")
    said = f"Mine.build ({place(SOFTMAX, 'def build')}) makes outputs that are probabilities"
    assert (said in caplog.text) == ("nn.Softmax" in last)


@pytest.mark.parametrize(
    ("code", "changes", "line"),
    [
        (
            "class Mine(Partition):\n"
            "    def spread(self, samples, clients, rng):\n"
            "        return self.nothing\n",
            "data=Federation(partition=Mine())",
            "return self.nothing",
        ),
        (
            "class Mine(Source):\n    def load(self):\n        return {}['x']\n",
            "data=Federation(dataset=Mine())",
            "return {}",
        ),
        (
            "class Mine(Model):\n    def build(self, input_shape, num_classes):\n"
            "        return nn.Linear(64, classes)\n",
            "model=Mine()",
            "return nn.Linear",
        ),
    ],
)
def test_an_error_while_data_load_or_a_model_is_built_names_the_users_line(
    code: str, changes: str, line: str, tmp_path: Path
) -> None:
    code = "from raysafl.data.sources import Source\n" + code
    with pytest.raises(ValueError, match="Error") as error:
        go(load(tmp_path, code, changes), tmp_path / "s")
    assert str(error.value).startswith(f"Mine ({place(code, line)}): ")
    assert not (tmp_path / "s").exists()


def test_a_failed_try_leaves_the_results_of_an_earlier_sweep_as_they_were(
    tmp_path: Path,
) -> None:
    good = load(tmp_path, algorithm("yield", "return state"), "algorithm=FedAvg()")
    store = Store(tmp_path / "s")
    store.create()
    store.write_manifest(good.manifest())
    (tmp_path / "s" / "rounds" / "x.parquet").write_bytes(b"rows")
    before = contents(tmp_path / "s")
    for resume in (True, False):
        with pytest.raises(ValueError, match="ZeroDivisionError"):
            go(
                load(tmp_path, RAISES, "algorithm=Mine()"),
                tmp_path / "s",
                resume=resume,
            )
        assert contents(tmp_path / "s") == before


def test_a_round_that_exits_is_told_as_an_error(tmp_path: Path) -> None:
    code = algorithm("import sys", "sys.exit(3)", "yield")
    with pytest.raises(ValueError, match="SystemExit: 3") as error:
        go(load(tmp_path, code, "algorithm=Mine()"), tmp_path / "s")
    assert str(error.value).startswith(f"Mine ({place(code, 'sys.exit')}): ")


def test_no_try_leaves_the_try_out(tmp_path: Path) -> None:
    with pytest.raises(NoRay):
        go(load(tmp_path, RAISES, "algorithm=Mine()"), tmp_path / "s", try_first=False)


def test_a_right_class_passes_and_the_global_random_states_stay(tmp_path: Path) -> None:
    code = algorithm(
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
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*_: object) -> NoReturn:
        raise AssertionError("it was tried")

    monkeypatch.setattr(attempt, "rehearse", tried)
    with pytest.raises(NoRay):
        go(Sweep("own", [tiny]), tmp_path / "s")
    with pytest.raises(AssertionError, match="it was tried"):
        go(load(tmp_path, RAISES, "algorithm=Mine()"), tmp_path / "t")


def test_a_drawn_run_is_tried_before_anything_runs(tmp_path: Path) -> None:
    code = policy("return state, Cohort([99])")
    file = write(tmp_path, code, "participation=Mine()")
    file.write_text(
        file.read_text() + "\nfrom ray import tune\nSWEEP = Sweep('sampled', "
        "space={'local.lr': tune.uniform(0.1, 1)}, "
        "base=BASE.replace(participation=Mine()))\n"
    )
    with pytest.raises(ValueError, match="which does not exist") as error:
        go(load_sweep(file), tmp_path / "s")
    assert (
        "of the run local.lr=0." in str(error.value) and not (tmp_path / "s").exists()
    )


def test_a_sampled_sweep_of_raysafls_own_components_is_not_tried(
    tiny: Run, tmp_path: Path
) -> None:
    sweep = Sweep("x", space={"local.lr": tune.uniform(0.1, 1)}, base=tiny)
    with pytest.raises(NoRay):
        go(sweep, tmp_path / "s")


class Mine(FedAvg):
    """FedAvg in a class of the user's own."""

    number: int = 0


class Other(Mine):
    """Another class of the user's own."""


def test_each_combination_is_tried_once_and_new_classes_come_first(tiny: Run) -> None:
    numbers = {f"a{i}": tiny.replace(algorithm=Mine(number=i)) for i in range(3)}
    again = {f"b{i}": run.replace(seed=5) for i, run in enumerate(numbers.values())}
    runs = numbers | again | {"c": tiny.replace(algorithm=Other()), "d": tiny}
    tried = rehearsal._combinations(runs)
    assert [label for label, _ in tried] == ["a0", "c", "a1", "a2"]
    assert all(run.replicates == 1 for _, run in tried)


def test_after_some_seconds_no_further_round_is_tried(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(rehearsal, "SECONDS", -1.0)
    monkeypatch.setattr(rehearsal, "_try", lambda run, *_: seen.append(run))
    runs = {"a": tiny.replace(algorithm=Mine())}
    rehearsal.rehearse(runs, {tiny.data.source_key: tiny.data.load()})
    assert not seen
    monkeypatch.setattr(rehearsal, "SECONDS", 5.0)
    rehearsal.rehearse(runs, {tiny.data.source_key: tiny.data.load()})
    assert len(seen) == 1


def test_a_try_trains_few_clients_briefly_and_evaluates_nothing(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    train = Worker(tiny.cells[:1], tiny.data.load(), tiny.model).trainer.__class__.train

    def counted(self: Any, tasks: Any) -> Any:
        steps.append(tasks.by_local(lambda local: local.num_steps(10**6)).tolist())
        return train(self, tasks)

    def evaluated(*_: object) -> NoReturn:
        raise AssertionError("it was evaluated")

    monkeypatch.setattr("raysafl.training.trainer.LocalTrainer.train", counted)
    monkeypatch.setattr("raysafl.training.evaluation.Evaluator.sums_on", evaluated)
    run = tiny.replace({"participation.s": 0, "participation.m": 10}).replace(
        algorithm=Mine()
    )
    rehearsal.rehearse({"a": run}, {run.data.source_key: run.data.load()})
    # The second round shows whether it is equal.
    assert steps == 2 * [[rehearsal.STEPS] * rehearsal.CLIENTS]


def test_an_error_in_a_models_forward_names_its_line_too(tmp_path: Path) -> None:
    code = (
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        raise KeyError('missing')\n"
    ) + model("return Net(64, num_classes)")
    with pytest.raises(ValueError, match="KeyError: 'missing'") as error:
        go(load(tmp_path, code, "model=Mine()"), tmp_path / "s")
    said = str(error.value)
    assert said.startswith(f"Mine.build ({place(code, 'def build')}) makes a module")
    assert said.endswith(f"({place(code, 'raise KeyError')})")
