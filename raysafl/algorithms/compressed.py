"""Compressed uploads, with error feedback, for any algorithm."""

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor

from raysafl.algorithms.bases import Around
from raysafl.algorithms.focus import FOCUS
from raysafl.core.algorithm import (
    AskLosses,
    CountSamples,
    MeanUpdate,
    Request,
    Round,
    State,
    Train,
    TrainMean,
    Update,
)
from raysafl.core.component import Component
from raysafl.core.means import mean_of_rows
from raysafl.core.randomness import Key


class Compression(Component):
    """How a client compresses a vector that it sends.

    Example:
        >>> import torch
        >>> class Signs(Compression):
        ...     def compress(self, vector_P, rng):
        ...         return vector_P.sign() * vector_P.abs().mean()
        ...     def num_bytes(self, num_parameters):
        ...         return 4 + -(-num_parameters // 8)
        >>> Signs().compress(torch.tensor([3.0, -1.0]), np.random.default_rng(0))
        tensor([ 2., -2.])
        >>> Signs().num_bytes(100)
        17
    """

    abstract: ClassVar[bool] = True

    @abstractmethod
    def compress(self, vector_P: Tensor, rng: np.random.Generator) -> Tensor:
        """Return what the server makes of the compressed vector, [P] float32.

        Args:
            vector_P: The vector, float32; it must not be changed.
            rng: The source of randomness for this client and round.
        """

    @abstractmethod
    def num_bytes(self, num_parameters: int) -> int:
        """Return the bytes of a compressed vector of that many parameters."""


class TopK(Compression):
    """Only the k numbers of largest magnitude are sent; the others count as zero.

    k is `fraction` of the P parameters, rounded up. The k values take 4 bytes each, and
    where they stand takes 4 bytes each or a bitmap of P bits, whichever is shorter; a
    vector is sent whole if that is shorter still.

    Source: the operator top_k of Stich et al. 2018, NeurIPS
    (docs/papers.md#sparsified-sgd).

    Example:
        >>> import torch
        >>> top = TopK(fraction=0.5)
        >>> top.compress(torch.tensor([3.0, -1.0, 0.5, -4.0]), np.random.default_rng(0))
        tensor([ 3.,  0.,  0., -4.])
        >>> TopK(fraction=0.01).num_bytes(1000), TopK(fraction=1).num_bytes(1000)
        (80, 4000)
    """

    fraction: float = Field(
        gt=0, le=1, description="Share of the parameters that are sent."
    )

    def _count(self, num_parameters: int) -> int:
        # Without the correction, 0.07 of 100 would be 8, because of rounding.
        return max(1, math.ceil(self.fraction * num_parameters - 1e-9))

    def compress(self, vector_P: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the vector with zeros in place of its smaller numbers."""
        count = self._count(len(vector_P))
        if count == len(vector_P):
            return vector_P
        kept = vector_P.abs().topk(count).indices
        sent_P = torch.zeros_like(vector_P)
        sent_P[kept] = vector_P[kept]
        return sent_P

    def num_bytes(self, num_parameters: int) -> int:
        """Return the bytes of the values and of where they stand."""
        count = self._count(num_parameters)
        positions = min(4 * count, -(-num_parameters // 8))
        return min(4 * count + positions, 4 * num_parameters)


class Quantised(Compression):
    """Each number is sent as one of 2^bits - 1 levels, which are evenly spaced.

        sent_p = max|v| sign(v_p) level_p / s        with s = 2^(bits - 1) - 1

    With x = s |v_p| / max|v|, the level is x rounded up with probability x - floor(x)
    and down otherwise, so that sent_p is v_p in the mean; without `stochastic` it is
    the nearest whole number. A vector takes P `bits` bits, and 4 bytes for max|v|.

    Source: Alistarh et al. 2017, NeurIPS (docs/papers.md#qsgd). Their analysis scales a
    vector by its L2 norm, with which most numbers of a long vector would become zero;
    here it is scaled by its largest number.

    Example:
        >>> import torch
        >>> two_bits = Quantised(bits=2, stochastic=False)
        >>> two_bits.compress(torch.tensor([0.1, -0.4, 0.5]), np.random.default_rng(0))
        tensor([ 0.0000, -0.5000,  0.5000])
        >>> two_bits.num_bytes(1000)
        254
    """

    bits: int = Field(
        default=8, ge=2, le=16, description="Bits of each number, its sign included."
    )
    stochastic: bool = Field(
        default=True,
        description="Whether numbers are rounded at random, without bias; otherwise "
        "they are rounded to the nearest level.",
    )

    def compress(self, vector_P: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the vector with each number rounded to a level."""
        largest = float(vector_P.abs().max())
        # A vector of zeros stays, and so does one that is not finite: the run stops.
        if largest == 0 or not math.isfinite(largest):
            return vector_P
        steps = 2 ** (self.bits - 1) - 1
        x_P = vector_P.double() * (steps / largest)
        if self.stochastic:
            level_P = (x_P + torch.from_numpy(rng.random(len(x_P)))).floor_()
        else:
            level_P = x_P.round_()
        sent_P: Tensor = level_P * (largest / steps)
        return sent_P.to(vector_P.dtype)

    def num_bytes(self, num_parameters: int) -> int:
        """Return the bytes of the levels and of the largest number."""
        return 4 + -(-num_parameters * self.bits // 8)


class _Received(Update):
    """Updates of which something else arrives than the clients have computed."""

    computed_MP: Tensor

    @classmethod
    def of(cls, update: Update, sent_MP: Tensor) -> "_Received":
        """Return an update of which `sent_MP` arrives."""
        received = cls(sent_MP, *update[1:])
        received.computed_MP = update.delta_MP
        return received

    @property
    def own_MP(self) -> Tensor:
        """The updates that the clients computed."""
        return self.computed_MP


class Compressed(Around):
    """An algorithm whose clients compress what they send, and make up for it later.

        p_i  = Delta_i + e_i
        sent = C(p_i)                   what arrives at the server as Delta_i
        e_i  <- p_i - C(p_i)            stays with the client until its next round

    e_i is client i's residual, zero at first: the sum of all that it has sent, and the
    residual, is the sum of all its updates. Without `error_feedback` the residual is
    dropped. What a client remembers of itself (the c_i of SCAFFOLD, the h_i of FedDyn)
    comes from Delta_i, which it knows. `bytes_up` counts the compressed updates. What an
    algorithm sends besides them (SCAFFOLD's control variates), and what clients are
    sent, is not compressed. Training at the server is left as it is.

    The server holds the updates of the whole cohort, M P numbers, since each of them is
    compressed by itself.

    Source: Seide et al. 2014, Interspeech (docs/papers.md#one-bit-sgd), and Karimireddy
    et al. 2019, ICML, algorithm 2 (docs/papers.md#error-feedback), with the local
    training's update in place of the gradient.

    Raises:
        ValueError: The inner algorithm compresses its updates itself.

    Example:
        >>> import raysafl as fl
        >>> from raysafl.algorithms import Compressed, TopK
        >>> algorithm = Compressed(inner=fl.FedAvg(), compression=TopK(fraction=0.1))
        >>> algorithm.compression.num_bytes(650)
        342
    """

    remembers_clients: ClassVar[bool] = True
    compression: SerializeAsAny[Compression] = Field(
        description="How an update is compressed, such as TopK(fraction=0.01)."
    )
    error_feedback: bool = Field(
        default=True,
        description="Whether a client adds what it has not sent to its next update.",
    )

    @model_validator(mode="after")
    def _fits(self) -> "Compressed":
        for part in self.inner.components():
            if isinstance(part, Compressed):
                raise ValueError(
                    "Compressed cannot be compressed: updates that were compressed must "
                    "be sent as they are; take another inner algorithm"
                )
            if isinstance(part, FOCUS):
                raise ValueError(
                    "FOCUS cannot be compressed: its clients do not send updates but "
                    "gradients, whose sum must not lose a part; take another inner algorithm"
                )
        return self

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Run the inner round, and compress what its clients send."""
        # The residual of client i stands under ~i, a negative number, so that the inner
        # algorithm never sees it, and can forget what it remembers of a client.
        residuals = {~i: row_P for i, row_P in state.clients.items() if i < 0}
        own = {i: row_P for i, row_P in state.clients.items() if i >= 0}
        inner_round = self.inner.turn(replace(state, clients=own), ids, key)
        call = 0
        answer: Any = None
        while True:
            try:
                request = inner_round.send(answer)
            except StopIteration as end:
                after: State = end.value
                kept = {~i: row_P for i, row_P in residuals.items()}
                return replace(after, clients={**after.clients, **kept})
            call += 1
            answer = yield from self._answer(request, residuals, key, call)

    def _answer(
        self,
        request: Request | CountSamples,
        residuals: dict[int, Tensor],
        key: Key,
        call: int,
    ) -> Generator[Request | CountSamples, Any, Any]:
        """Have a request of the inner algorithm carried out, and compress the answer.

        Args:
            request: The request.
            residuals: The residuals of all clients that have one; new ones are put here.
            key: The source of randomness for this seed and round.
            call: The number of this request in the round.
        """
        if isinstance(request, CountSamples | AskLosses) or max(request.ids) < 0:
            return (yield request)
        update: Update = yield self._for_rows(request)
        sent_MP = update.delta_MP.clone()
        for row_P, i in zip(sent_MP, request.ids, strict=True):
            # The server's own training is not sent.
            if i < 0:
                continue
            if self.error_feedback and i in residuals:
                row_P += residuals[i]
            sent_P = self.compression.compress(row_P, key(f"compress {call}", i))
            if self.error_feedback:
                residuals[i] = row_P - sent_P
            row_P.copy_(sent_P)
        if isinstance(request, TrainMean):
            return MeanUpdate(mean_of_rows(sent_MP, request.weight_M), *update[1:])
        return _Received.of(update, sent_MP)

    def _for_rows(self, request: Request) -> Train:
        """Return a request for one row per client, with the bytes that they send.

        Raises:
            ValueError: The inner algorithm compresses its updates itself.
        """
        if request.up_bytes is not None:
            raise ValueError(
                f"{type(self.inner).__name__} compresses its updates itself (up_bytes), "
                "so they must be sent as they are; leave out Compressed"
            )
        same = {f.name: getattr(request, f.name) for f in fields(Request)}
        up_bytes = self.compression.num_bytes(request.w_P.numel())
        return Train(**same | {"up_bytes": up_bytes})
