"""Experiment files with one mistake in a class of the user's own, as users make them."""

from pathlib import Path

from raysafl.sweep.definition import Sweep
from raysafl.sweep.experiment_file import load_sweep

HEAD = """
import math
from dataclasses import replace
import numpy as np
import raysafl.data
import torch
from torch import nn
from raysafl import *
from raysafl.algorithms import State
from raysafl.data import Dataset, Partition, Samples
from raysafl.objectives import Metric, Regression
from raysafl.participation import Full
from raysafl.quickstart import BASE as QUICK

BASE = QUICK.replace(rounds=3, replicates=2)
"""


def write(folder: Path, code: str, changes: str, name: str = "mine") -> Path:
    """Write an experiment file with a base run, some classes, and a sweep of one run."""
    file = folder / f"{name}.py"
    runs = f"{{('{name}', 0): BASE.replace({changes})}}"
    end = f"\nSWEEP = Sweep('{name}', {runs}, axes=['method', 's'])\n"
    file.write_text(HEAD + code + end)
    return file


def load(folder: Path, code: str, changes: str, name: str = "mine") -> Sweep:
    """Write an experiment file and load its sweep."""
    return load_sweep(write(folder, code, changes, name))


def place(code: str, of: str) -> str:
    """Return `mine.py:LINE` of the only line of the code that begins with a text."""
    lines = (HEAD + code).splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.strip().startswith(of)]
    return f"mine.py:{number}"


def algorithm(*lines: str) -> str:
    """Return the code of an algorithm `Mine` whose `round` has these lines."""
    body = "\n".join(f"        {line}" for line in lines)
    return f"class Mine(Algorithm):\n    def round(self, state, ids, key):\n{body}\n"


def policy(*lines: str) -> str:
    """Return the code of a policy `Mine` whose `pick` has these lines."""
    body = "\n".join(f"        {line}" for line in lines)
    head = "    def pick(self, state, num_clients, key, accuracy):"
    return f"class Mine(Participation):\n{head}\n{body}\n"


def model(*lines: str) -> str:
    """Return the code of a model `Mine` whose `build` has these lines."""
    body = "\n".join(f"        {line}" for line in lines)
    head = "    def build(self, input_shape, num_classes):"
    return f"class Mine(Model):\n{head}\n{body}\n"


def objective(losses: str, sums: str = "(o - t).sum(0)") -> str:
    """Return the code of an objective `Mine` with these losses, and a metric's sums."""
    return (
        "class Line(raysafl.data.Source):\n"
        "    def load(self):\n"
        "        x = np.random.default_rng(0).normal(size=(200, 2)).astype('float32')\n"
        "        part = Samples(x, x[:, 0])\n"
        "        return Dataset('line', part, part, num_classes=0)\n"
        "class Mine(Objective):\n"
        "    def losses(self, outputs, targets):\n"
        f"        return {losses}\n"
        "    def measures(self, num_outputs):\n"
        f"        sums = lambda o, t: {sums}\n"
        "        value = lambda sums, count: float(sums[0])\n"
        "        return {'mine': Metric('mine', sums, value)}\n"
    )


LINE = (
    "{'objective': Mine(), 'data.dataset': Line(), 'data.partition': Iid(),"
    " 'data.server': None}"
)
MEAN = "state = replace(state, w_P=state.w_P - update.delta_MP.mean(0))"
# Code of a class `Mine`, the change that puts it into a run, the method that is wrong,
# and a part of the sentence that says so.
MISTAKES = {
    "a plain function": (
        algorithm("Train(state.w_P, ids)", "return state"),
        "algorithm=Mine()",
        "Mine.round",
        "must be a generator: it yields fl.Train(...) or fl.TrainMean(...)",
    ),
    "returns before it yields": (
        algorithm("return state", "yield"),
        "algorithm=Mine()",
        "Mine.round",
        "in round 0 it returned without a yield",
    ),
    "a plain function inside SAFARI": (
        algorithm("return state"),
        "algorithm=SAFARI(inner=Mine(), client_prob=0.5)",
        "Mine.round",
        "must be a generator",
    ),
    "yields no request": (
        algorithm("yield state.w_P", "return state"),
        "algorithm=Mine()",
        "Mine.round",
        "must yield fl.Train(...) or fl.TrainMean(...) for at least one client; in round "
        "0 it yielded a Tensor of shape [650]",
    ),
    "trains clients outside the cohort": (
        algorithm("yield Train(state.w_P, [9 - i for i in ids])", "return state"),
        "algorithm=Mine(), participation=Absent(s=8, m=2)",
        "Mine.round",
        "must train clients of the cohort, its `ids`; in round 0 it asked for [8, 9], who "
        "are not among them. The run's participation selects the cohort",
    ),
    "names in place of ids": (
        algorithm("yield Train(state.w_P, ['a'])", "return state"),
        "algorithm=Mine()",
        "Mine.round",
        "its ids are ['a']",
    ),
    "an offset of the wrong shape": (
        algorithm(
            "yield Train(state.w_P, ids, offset_MP=torch.zeros_like(state.w_P))",
            "return state",
        ),
        "algorithm=Mine()",
        "Mine.round",
        "offset_MP is a Tensor of shape [650], but must be a tensor of shape [5, 650]",
    ),
    "a start of the wrong shape": (
        algorithm("yield Train(state.w_P[:-1], ids)", "return state"),
        "algorithm=Mine()",
        "Mine.round",
        "w_P is a Tensor of shape [649], but must be a tensor of shape [650]",
    ),
    "returns nothing": (
        algorithm("update = yield Train(state.w_P, ids)", MEAN),
        "algorithm=Mine()",
        "Mine.round",
        "must return a State, for example replace(state, w_P=...); in round 0 it "
        "returned None",
    ),
    "an update that was not averaged": (
        algorithm(
            "update = yield Train(state.w_P, ids)",
            "return replace(state, w_P=state.w_P - update.delta_MP)",
        ),
        "algorithm=Mine()",
        "Mine.round",
        "w_P of its State is a Tensor of shape [5, 650], but must be a tensor of shape "
        "[650]",
    ),
    "numbers in the server's memory": (
        algorithm(
            "update = yield Train(state.w_P, ids)",
            "return State(state.w_P, {'c': 1.5})",
        ),
        "algorithm=Mine()",
        "Mine.round",
        "server['c'] is 1.5, but must be a tensor",
    ),
    "short vectors in the clients' memory": (
        algorithm(
            "update = yield Train(state.w_P, ids)",
            "return replace(state, clients={i: torch.zeros(3) for i in ids})",
        ),
        "algorithm=Mine()",
        "Mine.round",
        "is a Tensor of shape [3], but must be a tensor of shape [650]; what is smaller "
        "can be a row of a tensor in server",
    ),
    "a policy that returns an array": (
        policy("return np.arange(3)"),
        "participation=Mine()",
        "Mine.pick",
        "must return (state, Cohort(ids))",
    ),
    "a mask in place of ids": (
        policy("return state, Cohort(np.arange(num_clients) < 3)"),
        "participation=Mine()",
        "Mine.pick",
        "the ids are a ndarray of shape [10]",
    ),
    "a number that is out of range": (
        policy("return state, Cohort([1, num_clients])"),
        "participation=Mine()",
        "Mine.pick",
        "by whole numbers from 0 to 9; in round 0 the cohort holds client 10",
    ),
    "repeated numbers": (
        policy("return state, Cohort([1, 1, 2])"),
        "participation=Mine()",
        "Mine.pick",
        "the cohort holds a client twice: [1, 1, 2]",
    ),
    "arrays in the policy's state": (
        policy("return np.zeros(2), Cohort([0])"),
        "participation=Mine()",
        "Mine.pick",
        "must return a state of plain numbers, texts, lists and dictionaries",
    ),
    "training that goes on in an algorithm of one's own": (
        algorithm(
            "local = raysafl.training.ContinuedTraining(",
            "    lr=0.1, batch_size=8, steps=2, optimizer='adam'",
            ")",
            "update = yield TrainMean(state.w_P, ids, local=local)",
            "return replace(state, w_P=state.w_P - update.delta_P)",
        ),
        "algorithm=Mine()",
        "Mine.round",
        "local is ContinuedTraining, with which only the run's own clients go on",
    ),
    "an unknown client inside a snapshot policy": (
        policy("return state, Cohort([99])"),
        "participation=Snapshot(base=Mine(), uniform=Uniform(m=5), every=2)",
        "Mine.pick",
        "the cohort holds client 99, which does not exist",
    ),
    "an empty client": (
        "class Mine(Partition):\n"
        "    def spread(self, samples, clients, rng):\n"
        "        parts = np.array_split(np.arange(len(samples.labels)), clients - 1)\n"
        "        return [np.empty(0, int), *parts]\n",
        "data=Federation(partition=Mine(), server=IidServer(n0=50)), "
        "participation=Full()",
        "Mine.spread",
        "client 0 holds no samples",
    ),
    "a server without data": (
        algorithm("yield Train.server(state.w_P, QUICK.local)", "return state"),
        "algorithm=Mine(), data=Federation()",
        "",
        "trains on the server's data, but the server holds none",
    ),
}
# These are found when the model is built or tried on a batch, so never by a simulation.
MODEL_MISTAKES = {
    "build returns nothing": (
        model("nn.Linear(64, 10)"),
        "model=Mine()",
        "Mine.build",
        "must return an nn.Module; it returned None",
    ),
    "a model that does not accept the input": (
        model("return nn.Linear(math.prod(input_shape), num_classes)"),
        "model=Mine()",
        "Mine.build",
        "makes a module that does not accept a batch of inputs of shape [2, 1, 8, 8] "
        "(torch.float32): RuntimeError: ",
    ),
    "too few outputs": (
        model("return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes - 1))"),
        "model=Mine()",
        "Mine.build",
        "must make a module that returns outputs [B, num_classes], for this batch [2, "
        "10]; it returned a Tensor of shape [2, 9]",
    ),
}
OTHERS = "the result for a sample depends on the other samples of its batch"
# Parts of a model that are wrong, and what is said of them.
MODEL_PARTS = {
    "nn.BatchNorm1d(64, track_running_stats=False)": OTHERS,
    "Mixed()": OTHERS,
    "Counts()": "(an attribute, or inputs, that forward changes?)",
    "Drops()": "the model draws from torch's global generator",
    "Noisy()": "Draw random numbers with torch alone, which raysafl seeds",
    "Hooked()": "scale gradients in `forward`, not by a hook of a parameter",
    "Listed()": "keep parameters as attributes alone",
    "Again()": "have nothing computed again for the gradient",
}
MODEL_MISTAKES |= {
    f"{part} in a model of {precision}": (
        "class Counts(nn.Module):\n"
        "    passes = 0\n"
        "    def forward(self, x):\n"
        "        self.passes += 1\n"
        "        return x * self.passes\n"
        "class Mixed(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * x.mean()\n"
        "class Drops(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return nn.functional.dropout(x, 0.5, self.training)\n"
        "class Noisy(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.scale = 1 + np.random.default_rng().random()\n"
        "    def forward(self, x):\n"
        "        return x * self.scale\n"
        "class Hooked(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 64)\n"
        "        self.weight.register_hook(lambda g: g / 2)\n"
        "class Listed(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 64)\n"
        "        self.all = [self.weight]\n"
        "    def forward(self, x):\n"
        "        return x @ self.all[0]\n"
        "class Again(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 64)\n"
        "    def forward(self, x):\n"
        "        forward = lambda x: nn.functional.linear(x, self.weight).sin()\n"
        "        if not self.training:\n"
        "            return forward(x)\n"
        "        again = torch.utils.checkpoint.checkpoint\n"
        "        return again(forward, x, use_reentrant=False)\n"
        + model(
            f"parts = nn.Flatten(), {part}, nn.Linear(64, num_classes)",
            "nn.init.zeros_(parts[2].weight)",
            "return nn.Sequential(*parts)",
        ),
        f"model=Mine(precision='{precision}')",
        "" if part == "Drops()" else "Mine.build",
        said,
    )
    for part, said in MODEL_PARTS.items()
    for precision in ("float32", "bfloat16")
}
SQUARE = "(outputs - targets).square()"
OBJECTIVE_MISTAKES = {
    "a loss for the whole batch": (
        objective(f"{SQUARE}.mean()"),
        LINE,
        "Mine.losses",
        "must return one finite loss per sample",
    ),
    "a loss for each output": (
        objective(SQUARE),
        LINE,
        "Mine.losses",
        "a tensor of shape [8]; it returned a Tensor of shape [8, 1]",
    ),
    "a loss that raises": (
        objective("outputs.squared()"),
        LINE,
        "",
        "AttributeError: 'Tensor' object has no attribute 'squared'",
    ),
    "a metric that does not add up": (
        objective(f"{SQUARE}.mean(1)", "(o - t).mean(0)"),
        LINE,
        "",
        "the metric 'mine' of Mine.measures (mine.py:",
    ),
    "targets that are classes": (
        "",
        "objective=Regression()",
        "",
        "Regression is for numbers, but the targets of 'digits' are 10 classes",
    ),
}
# Where the line that a message must name begins.
LINES = {
    "Mine.round": "def round",
    "Mine.pick": "def pick",
    "Mine.spread": "def spread",
    "Mine.build": "def build",
    "Mine.losses": "def losses",
}
