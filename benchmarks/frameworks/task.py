"""What every rival is given: a workload's data, split and numbers; and what it must print.

A rival runs in its own environment as `python SCRIPT SPEC.json`, without raysafl. The
spec is written by ../rivals.py: `data` names a .npz with x, y, test_x, test_y and the
clients' sample numbers [M, n]; inputs are x * scale + shift; `device` is torch's, the CPU
if there is none, and `network` is "pfl" for that of ../pfl_cifar10.py. The last line it prints is
one JSON object: seconds of each round, and the test accuracy at the end.
"""

import functools
import json
import sys
import time
from pathlib import Path

import numpy as np


@functools.cache
def spec(path=None):
    """The numbers of the workload, as ../rivals.py writes them."""
    return json.loads(Path(path or sys.argv[1]).read_text())


@functools.cache
def arrays(path=None):
    """(x, y), (test_x, test_y) as float32 and int64, and the clients' samples [M, n]."""
    task = spec(path)
    with np.load(task["data"]) as file:
        part = {name: file[name] for name in file.files}
    x, test_x = (
        part[name].astype(np.float32) * np.float32(task["scale"])
        + np.float32(task["shift"])
        for name in ("x", "test_x")
    )
    return (x, part["y"]), (test_x, part["test_y"]), part["clients"]


def torch_model(path=None):
    """The workload's network in torch: logistic regression from zero, or convolutions."""
    from torch import nn

    task = spec(path)
    if task.get("network") == "pfl":
        return pfl_network(*task["shape"])
    if not task["channels"]:
        layer = nn.Linear(task["inputs"], 10)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer)
    first, second = task["channels"]
    return nn.Sequential(
        *(nn.Conv2d(3, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(second * 64, task["hidden"]), nn.ReLU()),
        nn.Linear(task["hidden"], 10),
    )


def pfl_network(depth, height, width):
    """The network of ../pfl_cifar10.py."""
    from torch import nn

    pixels = ((height - 4) // 2) * ((width - 4) // 2)
    net = nn.Sequential(
        *(nn.Conv2d(depth, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(64 * pixels, 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, 10),
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return net


def device(path=None):
    """The torch device on which all is computed."""
    return spec(path).get("device", "cpu")


def wait(path=None):
    """Return when the device has done what it was told."""
    import torch

    if device(path) == "cuda":
        torch.cuda.synchronize()


def torch_accuracy(model, test, batch=1000):
    """The fraction of the test set that a torch model gets right."""
    import torch

    # Without dropout.
    model.eval()
    with torch.no_grad():
        pairs = zip(test[0].split(batch), test[1].split(batch), strict=True)
        right = sum(int((model(x).argmax(-1) == y).sum()) for x, y in pairs)
    model.train()
    return right / len(test[1])


def due(round_, path=None):
    """Whether the model is evaluated after this round, counted from 1."""
    task = spec(path)
    return round_ % task["eval_every"] == 0 or round_ == task["rounds"]


class Clock:
    """Seconds between ticks, one per round."""

    def __init__(self):
        self.at, self.seconds = time.perf_counter(), []

    def tick(self):
        """A round is over."""
        now = time.perf_counter()
        self.seconds.append(now - self.at)
        self.at = now


def report(seconds, accuracy):
    """Print the result."""
    print(json.dumps({"seconds": seconds, "accuracy": float(accuracy)}), flush=True)
