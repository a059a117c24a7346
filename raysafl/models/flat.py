"""Any module as one flat vector of parameters. Suffixes: _P flat parameters, _B batch."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from raysafl.core.problem import Model
from raysafl.core.randomness import Key
from raysafl.models.dropout import drawing_from, seed_dropout
from raysafl.models.fused_pooling import fuse_pooling


class FlatModel:
    """A module seen as a function of one flat vector w_P, and of a seed if it has dropout.

    Every `nn.Dropout` in it becomes ours (`raysafl.models.Dropout`), which drops the same
    whatever runs beside it; every `nn.Sequential` does ReLU and the 2x2 pooling behind it at once
    (`PooledSequential`). The module is in train mode while it learns, else in eval mode.

    Raises:
        ValueError: the module holds buffers (BatchNorm): running statistics are state that
            federated averaging does not define; GroupNorm and LayerNorm hold none. Or it draws
            random numbers elsewhere than in `nn.Dropout`.
    """

    def __init__(self, model: Model, input_shape: tuple[int, ...], num_classes: int) -> None:
        self.half = model.precision == "bfloat16"
        self._recipe, self._arguments = model, (input_shape, num_classes)
        with torch.random.fork_rng(devices=[]):  # building draws parameters, which are not used
            self.module = model.build(*self._arguments).requires_grad_(False)
        buffers = [name for name, _ in self.module.named_buffers()]
        if buffers:
            raise ValueError(
                f"model {type(model).__name__} holds buffers ({', '.join(buffers)}), which clients "
                "cannot average as parameters; use GroupNorm or LayerNorm in place of BatchNorm"
            )
        self.pools = fuse_pooling(self.module)
        self.has_dropout = seed_dropout(self.module, type(model).__name__)
        self.shapes = {name: p.shape for name, p in self.module.named_parameters()}
        self.num_parameters = sum(shape.numel() for shape in self.shapes.values())

    def init(self, key: Key) -> Tensor:
        """Initial parameters w_P as the module draws them, a function of the key alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(key("init").integers(2**63)))
            fresh = self._recipe.build(*self._arguments)
        return nn.utils.parameters_to_vector(fresh.parameters()).detach().clone()

    def named_parameters(self, w_P: Tensor) -> dict[str, Tensor]:
        """The flat vector as named views in the module's shapes."""
        pieces = w_P.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def logits(
        self, w_P: Tensor, x_B: Tensor, seed: Tensor | None = None, stacked: bool = False
    ) -> Tensor:
        """[batch, classes]: with dropout drawn from an int64 `seed` in training, else without.

        `stacked`: it is called under `torch.func.vmap`, for many models at once.
        """
        return self.forward(self.named_parameters(w_P), x_B, seed, stacked)

    def forward(
        self,
        parts: Mapping[str, Tensor],
        x_B: Tensor,
        seed: Tensor | None = None,
        stacked: bool = False,
    ) -> Tensor:
        """The same for parameters by name."""
        for pool in self.pools:
            pool.fused = not stacked
        training = seed is not None
        if self.module.training != training:
            self.module.train(training)
        half = torch.autocast(x_B.device.type, torch.bfloat16) if self.half else nullcontext()
        with drawing_from(seed if self.has_dropout else None), half:
            out: Tensor = torch.func.functional_call(self.module, dict(parts), (x_B,))
        return out.float()

    @property
    def digest(self) -> str:
        """A name that equal recipes on equal shapes share."""
        return f"{type(self._recipe).__name__} {self._recipe.digest()} {self._arguments}"

    @property
    def is_recurrent(self) -> bool:
        """Whether it holds an RNN, GRU or LSTM, whose kernels torch cannot stack."""
        return any(isinstance(part, nn.RNNBase) for part in self.module.modules())

    @property
    def linear_shape(self) -> tuple[int, int] | None:
        """(classes, inputs) if the module is one float32 linear layer on flattened inputs."""
        if self.half:
            return None
        match list(self.module.children()):
            case [nn.Flatten(start_dim=1, end_dim=-1), nn.Linear(bias=bias) as layer] if (
                type(self.module) is nn.Sequential and type(layer) is nn.Linear and bias is not None
            ):
                return layer.out_features, layer.in_features
        return None
