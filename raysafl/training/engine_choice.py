"""Which engine trains a model fastest on this machine: measured once, then remembered.

Linear models that are trained by plain cross-entropy use the engine `linear` or
`fused`, recurrent ones `loop`, without a measurement. Other choices are kept in a file
per user, so that all actors of a machine, and a run that is resumed, use the same
engine: engines agree to float32 tolerance only.
"""

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import torch
from filelock import FileLock
from torch import Tensor

from raysafl.core.objective import Objective
from raysafl.core.text import nearest
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN, has_plain_losses
from raysafl.training.device import is_out_of_memory, record
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

# Stacked in a measurement on a CPU, unless their samples are more than STEP. On a GPU
# as many are stacked as in training, but the loop, which takes one after the other,
# is measured on these.
MEASURED_TASKS = 8
# Timed calls of an engine, of which the fastest counts.
REPEATS = 3

# How far an engine's gradient may be from the loop's, as a fraction of the largest
# entry. An error above it is more than float32's rounding: half precision, or a bug.
TOLERANCE = 1e-3
# On a GPU, layers may compute in TF32 (10 bits) or bfloat16 (7 bits), and engines round
# differently. So there the reference is the loop in float32, and this is how far a
# gradient may be from it in each precision, as a fraction of its norm.
ALLOWED_ON_GPU = {"float32": 1e-3, "tf32": 0.03, "bfloat16": 0.1}


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
    most_tasks: int = MEASURED_TASKS,
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
        most_tasks: how many tasks of this batch size a GPU trains together.
    """
    is_plain = has_plain_losses(objective, model.num_outputs)
    if model.linear_shape is not None and is_plain:
        return "linear" if batches_x.is_cuda else "fused"
    if model.is_recurrent:
        return "loop"

    device = f"{torch.get_num_threads()} threads"
    if batches_x.is_cuda:
        device = f"{torch.cuda.get_device_name()} with {most_tasks} tasks"
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
            batch = Batches(model, batches_x, batches_y)
            if batches_x.is_cuda:
                known[key] = _measure_on_gpu(model, batch, objective, most_tasks)
            else:
                known[key] = _measure(model, batch, objective)
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


class Batches:
    """What the engines are measured on: a model's parameters, and batches in turn.

    Args:
        model: the model, with the parameters that it was built with.
        batches_x: inputs of several batches.
        batches_y: their targets.
    """

    def __init__(self, model: FlatModel, batches_x: Tensor, batches_y: Tensor) -> None:
        parts = [model.module.get_parameter(name).detach() for name in model.shapes]
        self.w_P = torch.cat([part.flatten() for part in parts])
        self.x = batches_x
        self.y = batches_y

    def of(self, tasks: int) -> tuple[Tensor, ...]:
        """Return the arguments of `Engine.gradients` for so many tasks."""
        task_T = torch.arange(tasks, device=self.w_P.device)
        w_TP = self.w_P.repeat(tasks, 1)
        x_TB = self.x[task_T % len(self.x)]
        y_TB = self.y[task_T % len(self.x)]
        weight_TB = self.w_P.new_full(y_TB.shape[:2], 1 / y_TB.shape[1])
        # A task's number is its dropout seed.
        return w_TP, x_TB, y_TB, weight_TB, task_T


def _measure(
    model: FlatModel, batches: Batches, objective: Objective
) -> dict[str, float]:
    """Return seconds per task and step of every engine whose gradients are right."""
    tasks = max(1, min(MEASURED_TASKS, STEP // batches.y.shape[1]))
    batch = batches.of(tasks)
    reference_TP = ENGINES["loop"](model, objective).gradients(*batch).g_TP
    largest = reference_TP.abs().max()
    times = {}
    for name in ("loop", "vmap"):
        engine = ENGINES[name](model, objective)
        try:
            seconds, result = _timed(functools.partial(engine.gradients, *batch))
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


def _measure_on_gpu(
    model: FlatModel, batches: Batches, objective: Objective, most_tasks: int
) -> dict[str, float]:
    """Return seconds per task and step of every engine whose gradients are right.

    The engine "graph" is measured by replaying its gradients, which the others compute
    by one launch after the other.
    """
    few = min(MEASURED_TASKS, most_tasks)
    loop = ENGINES["loop"](model, objective)
    with _in_float32(model):
        exact_TP = loop.gradients(*batches.of(few)).g_TP
    seconds, _ = _timed(functools.partial(loop.gradients, *batches.of(few)))
    times = {"loop": seconds / few}
    # Norms, since a single entry may be far off where an input of a ReLU is about 0.
    allowed = ALLOWED_ON_GPU[model.precision] * exact_TP.norm()
    for name in ("vmap", "graph"):
        try:
            seconds, g_TP = _timed_in_memory(
                name, model, batches, objective, most_tasks
            )
        except (ValueError, RuntimeError) as error:
            LOG.info("engine %s cannot train %s: %s", name, model.digest, error)
            continue
        distance = (g_TP[:few] - exact_TP[: len(g_TP)]).norm()
        if distance <= allowed:
            times[name] = seconds
        else:
            LOG.info(
                "engine %s is not used for %s: its gradients are %.1e away, where "
                "%.1e is allowed",
                name,
                model.digest,
                float(distance),
                float(allowed),
            )
    LOG.info("engines for %s, seconds per task and step: %s", model.digest, times)
    return times


def _timed_in_memory(
    name: str,
    model: FlatModel,
    batches: Batches,
    objective: Objective,
    most_tasks: int,
) -> tuple[float, Tensor]:
    """Return an engine's seconds per task and step on a GPU, and its gradients.

    Args:
        name: the engine's name.
        model: the model.
        batches: what it is measured on.
        objective: what gives each sample its loss.
        most_tasks: how many tasks are stacked; fewer if memory runs out.

    Raises:
        RuntimeError: the engine cannot run the model, or memory runs out for one task.
        ValueError: the engine cannot run the model.
    """
    engine = ENGINES[name](model, objective)
    tasks = most_tasks
    while True:
        try:
            call: Callable[[], Gradients] = functools.partial(
                engine.gradients, *batches.of(tasks)
            )
            if engine.can_record:
                call = _Recorded(call)
            seconds, result = _timed(call)
            return seconds / tasks, result.g_TP
        except RuntimeError as error:
            if not is_out_of_memory(error) or tasks == 1:
                raise
        LOG.info("engine %s: out of memory with %d tasks stacked", name, tasks)
        torch.cuda.empty_cache()
        tasks //= 2


class _Recorded:
    """A call of an engine that was recorded as a CUDA graph, and is replayed.

    It holds the call, with its arguments, since the graph reads them where they lie.
    """

    def __init__(self, call: Callable[[], Gradients]) -> None:
        self._call = call
        self._results: list[Gradients] = []
        self._graph = record(lambda: self._results.append(call()))

    def __call__(self) -> Gradients:
        self._graph.replay()
        return self._results[-1]


@contextmanager
def _in_float32(model: FlatModel) -> Iterator[None]:
    """Compute in float32 inside the block, whatever the model's precision."""
    cudnn = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    before = (model.is_bfloat16, matmul.allow_tf32, cudnn.allow_tf32)
    model.is_bfloat16 = False
    matmul.allow_tf32 = False
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        model.is_bfloat16, matmul.allow_tf32, cudnn.allow_tf32 = before


def _timed(call: Callable[[], Gradients]) -> tuple[float, Gradients]:
    """Return the seconds of an engine's fastest call, and its result.

    The first call sets up libraries and is slower, but is never the fastest one.
    """
    best = float("inf")
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        result = call()
        # Waits until a GPU has finished.
        float(result.loss_TB.sum())
        best = min(best, time.perf_counter() - begin)
    return best, result
