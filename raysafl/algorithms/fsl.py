"""FSL: federated learning with server learning (docs/papers.md#fsl)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator
from torch import Tensor

from raysafl.algorithms.bases import Around
from raysafl.algorithms.fedavg import FedAvg
from raysafl.core.algorithm import (
    Algorithm,
    LocalTraining,
    Round,
    Setting,
    State,
    Train,
    Update,
)
from raysafl.core.randomness import Key


def _samples_seen(local: LocalTraining, samples: float) -> float:
    """Return how many samples a client trains on in one round, repetitions included.

    A pass over n samples has ceil(n / B) mini-batches, of which the last may be small.
    So with epochs E it is E n, and with K steps, which are p whole passes and k more
    steps, it is p n + k B. K is what `local` says of a client that participates for the
    first time, so `ContinuedTraining` has at most one pass.

    Args:
        local: The client's training.
        samples: The number n of the client's samples, or its mean over the clients.
    """
    if local.steps is None:
        return samples * (local.epochs or 0)
    size = math.ceil(samples)
    passes, steps = divmod(local.num_steps(size), local.batches_per_pass(size))
    return passes * samples + steps * local.batch_size


class FSL(Around):
    """After each client round of `inner`, the server learns on D0 from the result.

    The server trains for E_s epochs at the learning rate gamma * eta_0, where
    eta_0 = sqrt(S) * `rate` for a cohort of S clients. It takes plain SGD steps, whatever
    momentum, weight decay or `clip_norm` the clients have. gamma = 0 is `inner` itself. In a
    round without participants, the server learns from the parameters as they are, with
    S = 1; the paper has no such round.

    Defaults that depend on the run are filled in by `prepare`, as in section IV-A:

        E_s  = ceil(n E_c / (N n0))
        B_0  = B
        rate = eta_l K / K_0

    n / N is the mean number of samples of a client, and E_c the clients' local epochs.
    B is their batch size, eta_l their learning rate and K their number of local steps;
    K_0 is the server's number of steps.

    `rate` falls over the rounds as the clients' learning rate does. Where the local
    training is given in steps, n E_c is the number of samples that a client with n / N
    samples trains on in these steps, each counted as often as it is drawn. A pass over
    its samples ends with a smaller batch, so this may be less than steps times B.

    Source: Mai et al. 2022, algorithm 1 (docs/papers.md#fsl). Scenario 1 trains on D0 for 500
    epochs at 0.01 before the first round (`pretrain`, `pretrain_lr`); scenario 2, the
    default, does not. Inside SAFARI it precedes the first client round, so that
    server rounds may precede it.

    Raises:
        ValueError: An FSL that pre-trains is inside another one, so that it would not
            train before the first round.
    """

    inner: SerializeAsAny[Algorithm] = Field(
        default_factory=lambda: FedAvg(lr=None),
        description="The algorithm of the client rounds; by default FedAvg whose server rate "
        "is sqrt(S), as in the paper.",
    )
    gamma: float = Field(
        default=1.0, ge=0, description="Weight of the server's learning rate."
    )
    epochs: int | None = Field(
        default=None, gt=0, description="Server epochs E_s a round; None: from the run."
    )
    batch_size: int | None = Field(
        default=None,
        gt=0,
        description="Server batch size B_0; None: that of the clients.",
    )
    rate: float | None = Field(
        default=None,
        gt=0,
        description="Server learning rate divided by sqrt(S); None: from the run.",
    )
    local: SerializeAsAny[LocalTraining] | None = Field(
        default=None,
        description="Leave it out: it is filled in with the run's local training, whose "
        "schedule `rate` follows.",
    )
    pretrain: int = Field(
        default=0, ge=0, description="Epochs on D0 before the first round."
    )
    pretrain_lr: float = Field(
        default=0.01, gt=0, description="Learning rate of `pretrain`."
    )
    # The number of all clients, which `prepare` fills in.
    _num_clients: int = PrivateAttr(default=0)

    @model_validator(mode="after")
    def _pretrains_before_all_else(self) -> "FSL":
        for part in self.inner.components():
            if isinstance(part, FSL) and part.pretrain:
                raise ValueError(
                    f"pretrain={part.pretrain} of an inner FSL would not train before the "
                    "first round; give pretrain to the outermost FSL"
                )
        return self

    @property
    def uses_server_data(self) -> bool:
        """Return whether the server learns, pre-trains, or `inner` trains on D0."""
        return self.gamma > 0 or self.pretrain > 0 or self.inner.uses_server_data

    def prepare(self, setting: Setting) -> Self:
        """Return this algorithm with the defaults filled in that depend on the run."""
        local = setting.local
        n0 = setting.server_samples
        batch_size = self.batch_size or local.batch_size
        filled: dict[str, Any] = {"batch_size": batch_size}
        if n0:
            filled |= self._server_training(setting, batch_size)
        prepared = super().prepare(setting).replace(filled, local=local)
        prepared._num_clients = setting.num_clients
        return prepared

    def _server_training(self, setting: Setting, batch_size: int) -> dict[str, Any]:
        """Return the server's epochs and rate, as section IV-A derives them."""
        local = setting.local
        n0 = setting.server_samples
        seen = _samples_seen(local, setting.client_samples)
        epochs = self.epochs or math.ceil(seen / n0)
        steps = local.num_steps(math.ceil(setting.client_samples))
        rate = self.rate or local.lr * steps / (epochs * math.ceil(n0 / batch_size))
        return {"epochs": epochs, "rate": rate}

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Return the inner algorithm's state, marked if pre-training is still to be done."""
        state = self.inner.init(w_P, num_clients)
        todo = {"pretrain": torch.tensor(num_clients)} if self.pretrain else {}
        return replace(state, server={**state.server, **todo})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Pre-train if due, run a client round, then let the server learn from its result."""
        # The mark is in the state, and so in the checkpoint, until pre-training is done.
        if "pretrain" in state.server:
            local = self._sgd(self.pretrain_lr, self.pretrain)
            update: Update = yield Train.server(state.w_P, local)
            # The inner algorithm starts here: pre-training is not one of its updates.
            w_P = state.w_P - update.delta_MP[0]
            state = self.inner.init(w_P, self._num_clients)

        after = yield from self.inner.turn(state, ids, key)
        if not self.gamma:
            return after

        assert self.rate and self.epochs, "prepare() fills in what depends on the run"
        # The server's learning rate falls over the rounds as the clients' does.
        rate = self.rate * (
            self.local.rate(key.round) / self.local.lr if self.local else 1
        )
        local = self._sgd(self.gamma * math.sqrt(max(1, len(ids))) * rate, self.epochs)
        update = yield Train.server(self._start(state.w_P, after.w_P), local)
        return replace(after, w_P=after.w_P - update.delta_MP[0])

    def _sgd(self, lr: float, epochs: int) -> LocalTraining:
        assert self.batch_size, "prepare() fills in what depends on the run"
        return LocalTraining(lr=lr, batch_size=self.batch_size, epochs=epochs)

    def _start(self, before_P: Tensor, after_P: Tensor) -> Tensor:
        """Return the parameters from which the server learns: the client round's result."""
        return after_P


class FSLParallel(FSL):
    """FSL-p, the non-incremental form: server and clients learn from the same parameters.

    The server's change, from the parameters at the start of the round, is added to the
    result of the client round.

    Source: Mai et al. 2022, sections II and B-B2 (docs/papers.md#fsl). They leave open how the
    server is weighted; here it is by gamma, through its learning rate.
    """

    def _start(self, before_P: Tensor, after_P: Tensor) -> Tensor:
        """Return the parameters at the start of the round."""
        return before_P
