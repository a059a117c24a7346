"""Any module as a function of one flat vector of parameters."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from raysafl.core.problem import Model
from raysafl.core.randomness import Key
from raysafl.models.dropout import drawing_from, seed_dropout
from raysafl.models.fused_pooling import fuse_pooling


class FlatModel:
    """A module as a function of one flat vector w_P, and of a seed if it has dropout.

    Algorithms average, add and send flat vectors, whatever the module. Two things in
    the module are replaced: each `nn.Dropout` becomes `raysafl.models.Dropout`, whose
    mask depends on a seed only; and each `nn.Sequential` computes a ReLU and the 2x2
    pooling after it in one pass (`raysafl.models.fused_pooling`).

    Args:
        model: the recipe of the module.
        input_shape: the shape of one sample.
        num_classes: the number of logits.

    Raises:
        ValueError: the module holds buffers, such as BatchNorm's running statistics,
            for which federated averaging is not defined (GroupNorm and LayerNorm hold
            none). Or it draws random numbers elsewhere than in `nn.Dropout`. Or the
            data do not fit the recipe.

    Example:
        >>> import raysafl as fl
        >>> model = FlatModel(fl.MLP(hidden=[8]), input_shape=(1, 4, 4), num_classes=3)
        >>> w_P = model.init(fl.Key(0))
        >>> w_P.shape == (model.num_parameters,)
        True
        >>> model.logits(w_P, torch.zeros(5, 1, 4, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self, model: Model, input_shape: tuple[int, ...], num_classes: int
    ) -> None:
        self.is_bfloat16 = model.precision == "bfloat16"
        self._recipe = model
        self._arguments = (input_shape, num_classes)
        # Building draws parameters, which are not used: it must not change the global
        # stream.
        with torch.random.fork_rng(devices=[]):
            self.module = model.build(*self._arguments).requires_grad_(False)

        buffers = [name for name, _ in self.module.named_buffers()]
        if buffers:
            raise ValueError(
                f"model {type(model).__name__} holds buffers ({', '.join(buffers)}), "
                "which clients cannot average as parameters; use GroupNorm or "
                "LayerNorm in place of BatchNorm"
            )

        self.pools = fuse_pooling(self.module)
        self.has_dropout = seed_dropout(self.module, type(model).__name__)
        self.shapes = {name: p.shape for name, p in self.module.named_parameters()}
        self.num_parameters = sum(shape.numel() for shape in self.shapes.values())

    def init(self, key: Key) -> Tensor:
        """Draw initial parameters [P] as the module does, from the key alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(key("init").integers(2**63)))
            fresh = self._recipe.build(*self._arguments)
        return nn.utils.parameters_to_vector(fresh.parameters()).detach().clone()

    def named_parameters(self, w_P: Tensor) -> dict[str, Tensor]:
        """Return views of the flat vector, by name and in the module's shapes."""
        pieces = w_P.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def logits(
        self,
        w_P: Tensor,
        x_B: Tensor,
        seed: Tensor | None = None,
        stacked: bool = False,
    ) -> Tensor:
        """Compute the logits of a batch.

        Args:
            w_P: [P] parameters.
            x_B: [B, *input_shape] inputs.
            seed: an int64 from which dropout draws; the module is in train mode then.
                None computes without dropout, in eval mode.
            stacked: whether this is called under `torch.func.vmap`, for many models at
                once.

        Returns:
            [B, C] float32.
        """
        return self.forward(self.named_parameters(w_P), x_B, seed, stacked)

    def forward(
        self,
        parameters: Mapping[str, Tensor],
        x_B: Tensor,
        seed: Tensor | None = None,
        stacked: bool = False,
    ) -> Tensor:
        """Compute the logits of a batch from parameters by name; see `logits`."""
        for pool in self.pools:
            pool.fused = not stacked
        is_training = seed is not None
        if self.module.training != is_training:
            self.module.train(is_training)

        precision: torch.autocast | nullcontext[None] = nullcontext()
        if self.is_bfloat16:
            precision = torch.autocast(x_B.device.type, torch.bfloat16)
        with drawing_from(seed if self.has_dropout else None), precision:
            out: Tensor = torch.func.functional_call(
                self.module, dict(parameters), (x_B,)
            )
        return out.float()

    @property
    def digest(self) -> str:
        """A text that is equal for equal recipes on equal shapes."""
        return (
            f"{type(self._recipe).__name__} {self._recipe.digest()} {self._arguments}"
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the module holds an RNN, GRU or LSTM, which vmap cannot stack."""
        return any(isinstance(part, nn.RNNBase) for part in self.module.modules())

    @property
    def linear_shape(self) -> tuple[int, int] | None:
        """(classes, inputs) if the module is one float32 linear layer on flat inputs.

        None if it is anything else, or has no biases.
        """
        if self.is_bfloat16 or type(self.module) is not nn.Sequential:
            return None
        match list(self.module.children()):
            case [
                nn.Flatten(start_dim=1, end_dim=-1),
                nn.Linear(bias=bias) as layer,
            ] if type(layer) is nn.Linear and bias is not None:
                return layer.out_features, layer.in_features
        return None
