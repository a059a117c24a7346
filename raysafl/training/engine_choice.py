"""Which engine computes the gradients of a model: a rule, and never a measurement.

Engines agree to float32's tolerance only. So the engine that `auto` stands for depends on
the model, the objective, the samples' shape and the kind of device alone, and a
configuration gives the same numbers whatever else the machine does.
"""

import math

import torch
from torch import Tensor

from raysafl.core.objective import Objective
from raysafl.core.text import nearest
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN, has_plain_losses
from raysafl.training.device import is_out_of_memory
from raysafl.training.engines import Batch, Engine, Graph, Loop, Vmap
from raysafl.training.linear import Fused, Linear

ENGINES: dict[str, type[Loop] | type[Linear]] = {
    "loop": Loop,
    "vmap": Vmap,
    "linear": Linear,
    "fused": Fused,
    "graph": Graph,
}

# On a CPU, convolutions of many clients in one call are faster than one after the other
# only on images of at most so many pixels.
SMALL_IMAGE = 8 * 8
# How far the gradient of stacked tasks may be from the loop's, as a fraction of its norm.
# Layers may compute in TF32 (10 bits) or bfloat16 (7 bits), and engines round differently.
ALLOWED = {"float32": 1e-3, "tf32": 0.03, "bfloat16": 0.1}


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
            "engine='auto'"
        )
    is_plain = has_plain_losses(objective, model.num_outputs)
    if issubclass(ENGINES[name], Linear) and not is_plain:
        raise ValueError(
            f"engine {name!r} computes the gradient of the plain cross-entropy, that of "
            "Classification() without class_weights and label_smoothing, not of "
            f"{objective!r}; give engine='auto'"
        )
    return ENGINES[name](model, objective)


def choose_engine(
    model: FlatModel, x_TB: Tensor, y_TB: Tensor, objective: Objective = PLAIN
) -> str:
    """Return the name of the engine that is used for a model by default.

    Models of one linear layer under plain cross-entropy have their own engines, and
    recurrent layers cannot be stacked. Of other models a GPU takes the recorded steps of
    stacked tasks, and a CPU stacks tasks unless the model convolves images of more than
    8 x 8 pixels. A model that cannot be stacked, or whose gradients are then others than
    the loop's, is trained by the loop.

    Args:
        model: the model to train.
        x_TB: inputs of a few small batches, on the device of the training.
        y_TB: their targets.
        objective: what gives each sample its loss.
    """
    is_plain = has_plain_losses(objective, model.num_outputs)
    if model.linear_shape is not None and is_plain:
        return "linear" if x_TB.is_cuda else "fused"
    is_large = math.prod(x_TB.shape[-2:]) > SMALL_IMAGE and not x_TB.is_cuda
    if model.is_recurrent or (model.has_convolutions and is_large):
        return "loop"
    if not _stacks_right(model, x_TB, y_TB, objective):
        return "loop"
    return "graph" if x_TB.is_cuda else "vmap"


def _stacks_right(
    model: FlatModel, x_TB: Tensor, y_TB: Tensor, objective: Objective
) -> bool:
    """Whether a model's gradients for stacked tasks are those of the loop."""
    parts = [model.module.get_parameter(name).detach() for name in model.shapes]
    w_TP = torch.cat([part.flatten() for part in parts]).repeat(len(x_TB), 1)
    weight_TB = w_TP.new_full(y_TB.shape[:2], 1 / y_TB.shape[1])
    # A task's number is its dropout seed.
    seed_T = torch.arange(len(x_TB), device=w_TP.device)
    batch = Batch(w_TP, x_TB, y_TB, weight_TB, seed_T)
    exact_TP = ENGINES["loop"](model, objective).gradients(batch).g_TP
    try:
        g_TP = ENGINES["vmap"](model, objective).gradients(batch).g_TP
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        return False
    # Norms, since a single entry may be far off where an input of a ReLU is about 0.
    # What is no number is not equal either.
    distance = (g_TP - exact_TP).norm()
    return bool(distance <= ALLOWED[model.precision] * exact_TP.norm())
