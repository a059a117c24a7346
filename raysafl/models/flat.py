"""Any module as a function of one flat vector of parameters."""

import hashlib
from collections.abc import Hashable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Self

import torch
from torch import Tensor, nn

from raysafl.core.component import method_name
from raysafl.core.objective import Objective
from raysafl.core.problem import FROZEN_SEED, Dataset, Model
from raysafl.core.randomness import Key
from raysafl.core.text import in_brief
from raysafl.core.work import NamedModel
from raysafl.models.layers import drawing_from, fuse_pooling, seed_dropout


class FlatModel:
    """A module as a function of one flat vector w_P, and of a seed if it has dropout.

    Algorithms average, add and send flat vectors, whatever the module. The vector holds
    the trainable parameters: those that have `requires_grad=True` when the module is
    built. The others, and buffers such as a causal mask, are frozen: they are constants,
    which no engine changes and no message of a round holds. They do not depend on the
    run's seed, so that all replicates share them, as they would share a pre-trained
    backbone: a module that draws them at random draws the same ones in every process.

    Two things in the module are replaced: each `nn.Dropout` becomes
    `raysafl.models.Dropout`, whose mask depends on a seed only; and each
    `nn.Sequential` computes a ReLU and the 2x2 pooling after it in one pass, if the
    module may have images in the memory format channels_last
    (`raysafl.models.layers`).

    Args:
        model: the recipe of the module.
        input_shape: the shape of one sample.
        num_classes: the number of outputs, which the recipe is told.
        output_shape: the shape of the output for one sample; None: [num_classes].

    Attributes:
        name: the name of the recipe's class.
        is_channels_last: whether the module may have images in the memory format
            channels_last.

    Raises:
        ValueError: the module holds buffers that training changes, such as BatchNorm's
            running statistics, for which federated averaging is not defined (GroupNorm
            and LayerNorm hold none). Or it draws random numbers elsewhere than in
            `nn.Dropout`. Or it has no trainable parameter, or its frozen ones change from
            build to build. Or the data do not fit the recipe.

    Example:
        >>> import raysafl as fl
        >>> model = FlatModel(fl.MLP(hidden=[8]), input_shape=(1, 4, 4), num_classes=3)
        >>> w_P = model.init(fl.algorithms.Key(0))
        >>> w_P.shape == (model.num_parameters,)
        True
        >>> model.logits(w_P, torch.zeros(5, 1, 4, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        model: Model,
        input_shape: tuple[int, ...],
        num_classes: int,
        output_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.precision = model.precision
        self.is_bfloat16 = model.precision == "bfloat16"
        self._recipe = model
        self.name = type(model).__name__
        self._arguments = (input_shape, num_classes)
        self.num_outputs = num_classes
        *several, width = output_shape or (num_classes,)
        self.output_shape = (*several, model.outputs_for(width))
        # A part that `build` leaves in eval mode follows the module's mode like all others.
        self.module = self.build(FROZEN_SEED).eval()

        self.is_channels_last = not _has_small_strided(self.module)
        self.pools = fuse_pooling(self.module) if self.is_channels_last else []
        self.has_dropout = seed_dropout(self.module, self.name)
        self._recurrent = [
            part for part in self.module.modules() if isinstance(part, nn.RNNBase)
        ]
        # `build` may return a module that it keeps, so requires_grad stays as it is.
        self.shapes = {
            name: p.shape
            for name, p in self.module.named_parameters()
            if p.requires_grad
        }
        # The name of the parameter at each place of the module; a tied one has several places.
        # torch finds them by itself, but not where a part of the module has two names.
        name_of = {p: name for name, p in self.module.named_parameters()}
        self._places = {
            f"{path}.{own}".lstrip("."): name_of[p]
            for path, part in self.module.named_modules()
            for own, p in part.named_parameters(recurse=False, remove_duplicate=False)
        }
        self.num_parameters = sum(shape.numel() for shape in self.shapes.values())
        self._check_buffers()
        self._check_trainable()
        self._check_frozen()

    @classmethod
    def on(cls, model: Model, dataset: Dataset, objective: Objective) -> Self:
        """Return the model with as many outputs as an objective needs on a dataset."""
        return cls(
            model,
            dataset.train.x.shape[1:],
            objective.num_outputs(dataset),
            objective.output_shape(dataset),
        )

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The frozen parameters and the buffers by name, as the module holds them."""
        return self._frozen_in(self.module)

    def _frozen_in(self, module: nn.Module) -> dict[str, Tensor]:
        tensors = (*module.named_parameters(), *module.named_buffers())
        return {name: p for name, p in tensors if name not in self.shapes}

    def load_frozen(self, values: Mapping[str, Tensor]) -> None:
        """Replace the values of frozen parameters and buffers, which are given by name."""
        for name, value in values.items():
            self.frozen[name].copy_(value)

    def init(self, key: Key) -> Tensor:
        """Draw initial parameters [P] as the module does, from the key alone."""
        fresh = self.build(int(key("init").integers(2**63)))
        trainable = [p for p in fresh.parameters() if p.requires_grad]
        return nn.utils.parameters_to_vector(trainable).detach().clone()

    def named_parameters(self, w_P: Tensor) -> dict[str, Tensor]:
        """Return views of the flat vector, by name and in the module's shapes."""
        pieces = w_P.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def named(self, w_P: Tensor) -> NamedModel:
        """Return a flat vector as a model's parameters by name, with the frozen ones."""
        return NamedModel(self.named_parameters(w_P), self.frozen)

    def logits(
        self,
        w_P: Tensor,
        x_B: Tensor,
        seed: Tensor | None = None,
        stacked: bool = False,
    ) -> Tensor:
        """Compute the outputs of a batch, which for classes are logits.

        Args:
            w_P: [P] parameters.
            x_B: [B, *input_shape] inputs.
            seed: an int64 from which dropout draws; the module is in train mode then.
                None computes without dropout, in eval mode (but for recurrent layers
                while gradients are recorded).
            stacked: whether this is called under `torch.func.vmap`, for many models at
                once.

        Returns:
            [B, *output_shape] float32.
        """
        return self.forward(self.named_parameters(w_P), x_B, seed, stacked)

    def forward(
        self,
        parameters: Mapping[str, Tensor],
        x_B: Tensor,
        seed: Tensor | None = None,
        stacked: bool = False,
    ) -> Tensor:
        """Compute the outputs of a batch from parameters by name; see `logits`.

        Raises:
            ValueError: the module's output has another shape.
        """
        return self._checked(self._output(parameters, x_B, seed, stacked), len(x_B))

    def _output(
        self,
        parameters: Mapping[str, Tensor],
        x_B: Tensor,
        seed: Tensor | None,
        stacked: bool,
    ) -> Any:
        """Return what the module returns for a batch."""
        for pool in self.pools:
            pool.fused = not stacked
        is_training = seed is not None
        if self.module.training != is_training:
            self.module.train(is_training)
        # cuDNN computes gradients of recurrent layers in train mode only. They draw
        # nothing in it, since their own dropout is refused.
        for part in self._recurrent:
            part.train(is_training or torch.is_grad_enabled())

        precision: torch.autocast | nullcontext[None] = nullcontext()
        if self.is_bfloat16:
            precision = torch.autocast(x_B.device.type, torch.bfloat16)
        placed = {
            place: parameters[name]
            for place, name in self._places.items()
            if name in parameters
        }
        with drawing_from(seed if self.has_dropout else None), precision:
            return torch.func.functional_call(
                self.module, placed, (x_B,), tie_weights=False
            )

    def _checked(self, out: Any, batch: int) -> Tensor:
        """Return the outputs as float32 if they have the shape [B, *output_shape]."""
        shape = (batch, *self.output_shape)
        if not isinstance(out, Tensor) or out.shape != shape:
            *several, width = self.output_shape
            axes = ["B", *map(str, several), "num_classes"]
            is_one = several and getattr(out, "shape", None) == (batch, width)
            hint = f", for which targets are [n], not [n, {', '.join(axes[1:-1])}]"
            raise ValueError(
                f"{self._build_name} must make a module that returns outputs "
                f"[{', '.join(axes)}], for this batch {list(shape)}; it returned "
                f"{in_brief(out)}{hint if is_one else ''}"
            )
        return out.float()

    @torch.no_grad()
    def try_on(self, x_B: Tensor) -> Tensor:
        """Compute the outputs of a batch of the dataset, to see whether that works.

        Args:
            x_B: [B, *input_shape] inputs, on the CPU.

        Returns:
            [B, *output_shape] float32.

        Raises:
            ValueError: the module does not accept the batch, or its output has another
                shape.
        """
        parameters = dict(self.module.named_parameters())
        try:
            out = self._output(parameters, x_B, seed=None, stacked=False)
        except Exception as error:
            is_token = "argument #1 'indices'" in str(error)
            hint = (
                "; tokens must be int64 in fl.data.Samples (fl.from_arrays has numbers)"
            )
            raise ValueError(
                f"{self._build_name} makes a module that does not accept a batch of "
                f"inputs of shape {list(x_B.shape)} ({x_B.dtype}): "
                f"{type(error).__name__}: {error}{hint if is_token else ''}"
            ) from error
        return self._checked(out, len(x_B))

    @property
    def _build_name(self) -> str:
        """The method that makes the module, with its file and line, for messages."""
        return method_name(self._recipe, Model, "build")

    @property
    def key(self) -> Hashable:
        """What is equal only for models that compute the same in this process.

        Beside the recipe's digest it holds its class itself, as a notebook may define
        another one of the same name, and a hash of the frozen parameters, which may
        have been read from a file that has changed.
        """
        frozen = hashlib.sha256()
        for name, p in self.frozen.items():
            frozen.update(name.encode())
            raw = p.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            frozen.update(raw.numpy().tobytes())
        recipe = (type(self._recipe), self._recipe.digest(), *self._arguments)
        return (*recipe, self.output_shape, frozen.hexdigest())

    @property
    def is_recurrent(self) -> bool:
        """Whether the module holds an RNN, GRU or LSTM, which vmap cannot stack."""
        return bool(self._recurrent)

    @property
    def has_convolutions(self) -> bool:
        """Whether the module convolves anything."""
        forward = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        kinds = (*forward, *transposed)
        return any(isinstance(part, kinds) for part in self.module.modules())

    @property
    def is_dense(self) -> bool:
        """Whether all layers are torch's or raysafl's, in float32, and none convolves."""
        packages = {
            type(part).__module__.partition(".")[0] for part in self.module.modules()
        }
        is_known = packages <= {"torch", "raysafl"}
        return is_known and not (self.has_convolutions or self.is_bfloat16)

    @property
    def linear_shape(self) -> tuple[int, int] | None:
        """(classes, inputs) if the module is one float32 linear layer on flat inputs.

        None if it is anything else, has no biases, or has a frozen part.
        """
        if self.is_bfloat16 or type(self.module) is not nn.Sequential or self.frozen:
            return None
        match list(self.module.children()):
            case [
                nn.Flatten(start_dim=1, end_dim=-1),
                nn.Linear(bias=bias) as layer,
            ] if type(layer) is nn.Linear and bias is not None:
                return layer.out_features, layer.in_features
        return None

    def build(self, seed: int) -> nn.Module:
        """Build the module with torch's generator at a seed, and leave the generator."""
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also note for each kind of accelerator from where it
            # was called, which takes longer than to build a small model.
            torch.default_generator.manual_seed(seed)
            module = self._recipe.build(*self._arguments)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"{self._build_name} must return an nn.Module; it returned "
                f"{in_brief(module)}"
            )
        return module

    @torch.no_grad()
    def _check_buffers(self) -> None:
        """Raise ValueError if a pass in train mode changes a buffer."""
        before = {name: b.clone() for name, b in self.module.named_buffers()}
        if not before:
            return
        parameters = dict(self.module.named_parameters())
        numbers = Key(0)("buffers").standard_normal((2, *self._arguments[0]))
        # Zeros are tokens, if numbers are refused. If both are, `try_on` says why.
        for x in (torch.from_numpy(numbers).float(), torch.zeros(numbers.shape).long()):
            with suppress(Exception), torch.random.fork_rng(devices=[]):
                self._output(parameters, x, seed=torch.tensor(0), stacked=False)
                break
        after = dict(self.module.named_buffers())
        changed = [n for n, b in before.items() if not torch.equal(b, after[n])]
        if changed:
            raise ValueError(
                f"model {self.name} holds buffers ({', '.join(changed)}) "
                "that training changes, which clients cannot average as parameters; use "
                "GroupNorm or LayerNorm in place of BatchNorm"
            )

    def _check_trainable(self) -> None:
        """Raise ValueError if there is nothing to train."""
        if not self.num_parameters:
            raise ValueError(
                f"model {self.name} has no parameter to train: of its "
                f"{len(self.frozen)} parameters, all have requires_grad=False; leave it "
                "True for those that clients are to train"
            )

    def _check_frozen(self) -> None:
        """Raise ValueError if another build gives other frozen parameters.

        Client actors, and a run that is continued later, would then compute with
        another model.
        """
        frozen = self.frozen
        if not frozen:
            return
        again = self._frozen_in(self.build(FROZEN_SEED))
        changed = [n for n, p in frozen.items() if not torch.equal(p, again[n])]
        if changed:
            raise ValueError(
                f"model {self.name} gives its frozen parameters or "
                f"buffers ({', '.join(changed)}) other values at each build, but every process "
                "must build the same; draw them with torch, which raysafl seeds, or "
                "read them from a file"
            )


def _has_small_strided(module: nn.Module) -> bool:
    """Return whether a module has a 1x1 convolution with a stride and few channels.

    In the memory format channels_last the gradient of such a convolution's weights
    overwrites other memory on a CPU, or never ends, if it has fewer input channels than a
    vector register has floats, at most 16 (github.com/uxlfoundation/oneDNN/issues/6035).
    A ResNet's shortcuts are such convolutions.
    """
    return any(
        max(part.kernel_size) == 1 and max(part.stride) > 1 and part.in_channels < 16
        for part in module.modules()
        if isinstance(part, nn.Conv2d)
    )
