"""Which engine trains a model fastest here: measured once per model, shape and device, then kept.

Linear models are done by hand and recurrent ones in a loop, without a measurement. The choice is
kept in a file per user (`$RAYSAFL_CACHE`, else the cache folder), so that all actors of a machine
and a run that goes on agree: engines are equal to float32 tolerance only.
"""

import json
import logging
import os
import time
from pathlib import Path

import platformdirs
import torch
from filelock import FileLock
from torch import Tensor

from raysafl.core.text import nearest
from raysafl.models import FlatModel
from raysafl.training.engines import STEP, Engine, Gradients, Graph, Loop, Vmap
from raysafl.training.linear import Fused, Linear
from raysafl.version import __version__

LOG = logging.getLogger(__name__)
ENGINES: dict[str, type[Loop] | type[Linear]] = {
    "loop": Loop,
    "vmap": Vmap,
    "linear": Linear,
    "fused": Fused,
    "graph": Graph,
}
TASKS, REPEATS = 8, 3
AGREE = 1e-3  # of the largest entry of the loop's gradient: half precision or a bug is more


def make_engine(name: str, model: FlatModel) -> Engine:
    """The engine of this name for a model.

    Raises:
        ValueError: there is none of this name, or it is not for this model.
    """
    if name not in ENGINES:
        raise ValueError(f"there is no engine {name!r}; {nearest(name, ['auto', *ENGINES])}")
    if issubclass(ENGINES[name], Linear) and model.linear_shape is None:
        raise ValueError(
            f"engine {name!r} is for float32 models of one linear layer (Logistic), not for "
            f"{model.digest.split()[0]}; give --engine auto"
        )
    return ENGINES[name](model)


def choose_engine(model: FlatModel, x_NB: Tensor, y_NB: Tensor) -> str:
    """The fastest engine for a model on batches x_NB (N of them) with labels y_NB.

    `loop` is the reference: an engine that fails, or whose gradients differ from the loop's, is
    out. On a CPU vmap gains on many tiny models and loses on convolutions; it cannot run
    recurrent layers.
    """
    if model.linear_shape is not None:
        return "linear" if x_NB.is_cuda else "fused"
    if model.is_recurrent:
        return "loop"
    device = torch.cuda.get_device_name() if x_NB.is_cuda else f"{torch.get_num_threads()} threads"
    shape = "x".join(map(str, x_NB.shape[1:]))
    key = f"{model.digest} on {shape}, {device}, torch {torch.__version__}, {__version__}"
    file = cache_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):  # one measures, and undisturbed by the others; they wait
        known = _read(file)
        if key not in known:
            known[key] = _measure(model, x_NB, y_NB)
            file.write_text(json.dumps(known, indent=1))
        times: dict[str, float] = known[key]
    return min(times, key=times.__getitem__)


def cache_file() -> Path:
    """Where measured choices are kept; remove it to measure again."""
    folder = os.environ.get("RAYSAFL_CACHE") or platformdirs.user_cache_path("raysafl")
    return Path(folder) / "engines.json"


def _read(file: Path) -> dict[str, dict[str, float]]:
    """What was measured before; nothing if the file is damaged."""
    try:
        known = json.loads(file.read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def _measure(model: FlatModel, x_NB: Tensor, y_NB: Tensor) -> dict[str, float]:
    """Seconds per task and step of every engine that is right."""
    names = ["loop", "vmap", *(["graph"] if x_NB.is_cuda else [])]
    w_P = torch.cat([part.flatten() for part in model.module.parameters()])
    tasks = max(1, min(TASKS, STEP // y_NB.shape[1]))
    w_TP = w_P.repeat(tasks, 1)
    at = torch.arange(tasks, device=w_P.device) % len(x_NB)
    x_TB, y_TB = x_NB[at], y_NB[at]
    weight_TB = torch.full_like(y_TB, 1 / y_TB.shape[1], dtype=w_P.dtype)
    batch = w_TP, x_TB, y_TB, weight_TB, torch.arange(tasks, device=w_P.device)
    right = ENGINES["loop"](model).gradients(*batch).g_TP
    times = {}
    for name in names:
        try:
            seconds, found = _timed(ENGINES[name](model), batch)
        except (ValueError, RuntimeError) as error:
            LOG.info("engine %s is out for %s: %s", name, model.digest, error)
            continue
        if name == "loop" or (found.g_TP - right).abs().max() <= AGREE * right.abs().max():
            times[name] = seconds / tasks
    LOG.info("engines for %s, seconds per task and step: %s", model.digest, times)
    return times


def _timed(engine: Engine, batch: tuple[Tensor, ...]) -> tuple[float, Gradients]:
    """The best of a few runs after one that is not counted; GPU work included."""
    best = float("inf")
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        found = engine.gradients(*batch)
        float(found.loss_TB.sum())  # waits for a GPU
        best = min(best, time.perf_counter() - begin)
    return best, found
