"""Which engine trains a model fastest on this machine: measured once, then remembered.

Linear models that are trained by plain cross-entropy use the engine `linear` or
`fused`, recurrent ones `loop`, without a measurement. Other choices are kept in a file
per user, so that all actors of a machine, and a run that is resumed, use the same
engine: engines agree to float32 tolerance only.
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

from raysafl.core.objective import Objective
from raysafl.core.text import nearest
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN, has_plain_losses
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

# Stacked in a measurement, unless their samples are more than STEP.
MEASURED_TASKS = 8
# Timed calls of an engine, of which the fastest counts.
REPEATS = 3

# How far an engine's gradient may be from the loop's, as a fraction of the largest
# entry. An error above it is more than float32's rounding: half precision, or a bug.
TOLERANCE = 1e-3


def make_engine(name: str, model: FlatModel, objective: Objective = PLAIN) -> Engine:
    """Make the engine of this name for a model.

    Args:
        name: a key of ENGINES.
        model: the model whose gradients the engine computes.
        objective: what gives each sample its loss.

    Raises:
        ValueError: there is no engine of this name, or it is for plain cross-entropies
            of one linear layer and this is not that.

    Example:
        >>> import raysafl as fl
        >>> from raysafl.models import FlatModel
        >>> model = FlatModel(fl.MLP(hidden=[8]), input_shape=(1, 4, 4), num_classes=3)
        >>> make_engine("loop", model).max_stack(32)
        1
    """
    if name not in ENGINES:
        raise ValueError(
            f"there is no engine {name!r}; {nearest(name, ['auto', *ENGINES])}"
        )
    if issubclass(ENGINES[name], Linear) and model.linear_shape is None:
        raise ValueError(
            f"engine {name!r} is for float32 models of one linear layer (Logistic) "
            f"without frozen parameters, not for {model.digest.split()[0]}; give "
            "--engine auto"
        )
    is_plain = has_plain_losses(objective, model.num_outputs)
    if issubclass(ENGINES[name], Linear) and not is_plain:
        raise ValueError(
            f"engine {name!r} computes the gradient of the plain cross-entropy, that of "
            "Classification() without class_weights and label_smoothing, not of "
            f"{objective!r}; give --engine auto"
        )
    return ENGINES[name](model, objective)


def choose_engine(
    model: FlatModel,
    batches_x: Tensor,
    batches_y: Tensor,
    objective: Objective = PLAIN,
) -> str:
    """Return the name of the fastest engine for a model.

    The engine "loop" is the reference: an engine that fails, or whose gradients differ
    from the loop's, is not chosen. On a CPU, "vmap" is faster on many tiny models and
    slower on convolutions; it cannot run recurrent layers.

    Args:
        model: the model to train.
        batches_x: inputs of several batches, on the device of the training.
        batches_y: their targets.
        objective: what gives each sample its loss.
    """
    is_plain = has_plain_losses(objective, model.num_outputs)
    if model.linear_shape is not None and is_plain:
        return "linear" if batches_x.is_cuda else "fused"
    if model.is_recurrent:
        return "loop"

    device = f"{torch.get_num_threads()} threads"
    if batches_x.is_cuda:
        device = torch.cuda.get_device_name()
    shape = "x".join(map(str, batches_x.shape[1:]))
    key = (
        f"{model.digest} on {shape}, {device}, torch {torch.__version__}, {__version__}"
    )
    if not is_plain:
        key += f", {type(objective).__name__} {objective.digest()}"

    file = cache_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    # One process measures at a time, undisturbed by the others; these wait and read the
    # result.
    with FileLock(f"{file}.lock"):
        known = _read(file)
        if key not in known:
            known[key] = _measure(model, batches_x, batches_y, objective)
            file.write_text(json.dumps(known, indent=1))
        times: dict[str, float] = known[key]
    return min(times, key=times.__getitem__)


def cache_file() -> Path:
    """Return the file that keeps the measured choices; remove it to measure again.

    It is `engines.json` in `$RAYSAFL_CACHE`, or else in the user's cache folder.
    """
    folder = os.environ.get("RAYSAFL_CACHE") or platformdirs.user_cache_path("raysafl")
    return Path(folder) / "engines.json"


def _read(file: Path) -> dict[str, dict[str, float]]:
    """Return each engine's seconds by model and machine; empty for a damaged file."""
    try:
        known = json.loads(file.read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def _measure(
    model: FlatModel, batches_x: Tensor, batches_y: Tensor, objective: Objective
) -> dict[str, float]:
    """Return seconds per task and step of every engine whose gradients are right."""
    names = ["loop", "vmap"]
    if batches_x.is_cuda:
        names.append("graph")

    parts = [model.module.get_parameter(name).detach() for name in model.shapes]
    w_P = torch.cat([part.flatten() for part in parts])
    tasks = max(1, min(MEASURED_TASKS, STEP // batches_y.shape[1]))
    task_T = torch.arange(tasks, device=w_P.device)
    w_TP = w_P.repeat(tasks, 1)
    x_TB = batches_x[task_T % len(batches_x)]
    y_TB = batches_y[task_T % len(batches_x)]
    weight_TB = w_P.new_full(y_TB.shape[:2], 1 / y_TB.shape[1])
    # A task's number is its dropout seed.
    batch = (w_TP, x_TB, y_TB, weight_TB, task_T)

    reference_TP = ENGINES["loop"](model, objective).gradients(*batch).g_TP
    largest = reference_TP.abs().max()
    times = {}
    for name in names:
        try:
            seconds, result = _timed(ENGINES[name](model, objective), batch)
        except (ValueError, RuntimeError) as error:
            LOG.info("engine %s cannot train %s: %s", name, model.digest, error)
            continue
        # The loop stays in even if its gradients are NaN, which no comparison accepts.
        if (
            name == "loop"
            or (result.g_TP - reference_TP).abs().max() <= TOLERANCE * largest
        ):
            times[name] = seconds / tasks
    LOG.info("engines for %s, seconds per task and step: %s", model.digest, times)
    return times


def _timed(engine: Engine, batch: tuple[Tensor, ...]) -> tuple[float, Gradients]:
    """Return the seconds of an engine's fastest call, and its result.

    The first call sets up libraries and is slower, but is never the fastest one.
    """
    best = float("inf")
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        result = engine.gradients(*batch)
        # Waits until a GPU has finished.
        float(result.loss_TB.sum())
        best = min(best, time.perf_counter() - begin)
    return best, result
