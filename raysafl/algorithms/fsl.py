"""FSL: federated learning with server learning (Mai, La and Zhang)."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor

from raysafl.algorithms.fedavg import FedAvg
from raysafl.core.algorithm import Algorithm, LocalTraining, Round, Setting, State, Train, Update
from raysafl.core.randomness import Key


class FSL(Algorithm):
    """A client round of `inner`, then the server learns on D0 from its result (FSL, Algorithm 1).

    The server trains `epochs` passes at the rate gamma * eta_0, eta_0 = sqrt(S) * rate for a
    cohort of S. Defaults (section IV-A): epochs E_s = ceil(n E_c / (N n0)), with n/N samples per
    client and E_c local epochs; batch_size B_0 = B; rate = eta_l K / K_0 for K local steps and
    K_0 server steps, falling over rounds as that of `local` (the run's clients) does; inner is
    FedAvg with eta_g = sqrt(S). gamma = 0 is `inner`.

    `pretrain` epochs at the rate `pretrain_lr` on D0 come before the first round (scenario 1: 500
    at 0.01; scenario 2: none, the default). Where the local training is given in steps, E_s covers
    as many samples as a client sees, as E_s = ceil(n E_c / (N n0)) does.
    """

    inner: SerializeAsAny[Algorithm] = Field(default_factory=lambda: FedAvg(lr=None))
    gamma: float = Field(default=1.0, ge=0)
    epochs: int | None = Field(default=None, gt=0)
    batch_size: int | None = Field(default=None, gt=0)
    rate: float | None = Field(default=None, gt=0)
    local: LocalTraining | None = None
    pretrain: int = Field(default=0, ge=0)
    pretrain_lr: float = Field(default=0.01, gt=0)

    @property
    def uses_server_data(self) -> bool:
        """Not in the limit gamma = 0, unless to pre-train or by `inner`."""
        return self.gamma > 0 or self.pretrain > 0 or self.inner.uses_server_data

    def prepare(self, setting: Setting) -> "FSL":
        """With the defaults of the run, and the inner algorithm prepared."""
        inner, local, n0 = self.inner.prepare(setting), setting.local, setting.server_samples
        batch_size = self.batch_size or local.batch_size
        if not n0:
            return self.replace(inner=inner, batch_size=batch_size, local=local)
        epoch = setting.client_samples * (local.epochs or 0)
        seen = (local.steps or 0) * local.batch_size or epoch
        epochs = self.epochs or math.ceil(seen / n0)
        steps = local.num_steps(round(setting.client_samples))
        rate = self.rate or local.lr * steps / (epochs * math.ceil(n0 / batch_size))
        filled = {"batch_size": batch_size, "epochs": epochs, "rate": rate}
        return self.replace(filled, inner=inner, local=self.local or local)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """The inner algorithm's state; `pretrain` is there until it is done."""
        state = self.inner.init(w_P, num_clients)
        todo = {"pretrain": torch.tensor(num_clients)} if self.pretrain else {}
        return replace(state, server={**state.server, **todo})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round, and the server's learning from its end."""
        if "pretrain" in state.server:
            sgd = self._sgd(self.pretrain_lr, self.pretrain)
            update: Update = yield Train.server(state.w_P, sgd)
            num_clients = int(state.server["pretrain"])
            state = self.inner.init(state.w_P - update.delta_MP[0], num_clients)
        after = yield from self.inner.round(state, ids, key)
        if not self.gamma:
            return after
        assert self.rate and self.epochs, "prepare() fills in what depends on the run"
        rate = self.rate * (self.local.rate(key.round) / self.local.lr if self.local else 1)
        sgd = self._sgd(self.gamma * math.sqrt(len(ids)) * rate, self.epochs)
        update = yield Train.server(self._start(state.w_P, after.w_P), sgd)
        return replace(after, w_P=after.w_P - update.delta_MP[0])

    def _sgd(self, lr: float, epochs: int) -> LocalTraining:
        assert self.batch_size, "prepare() fills in what depends on the run"
        return LocalTraining(lr=lr, batch_size=self.batch_size, epochs=epochs)

    def _start(self, before_P: Tensor, after_P: Tensor) -> Tensor:
        """Where the server's learning starts: here, behind the clients'."""
        return after_P


class FSLParallel(FSL):
    """FSL-p, the non-incremental form: the server learns beside the clients; its change is added.

    w <- inner's result - gamma-scaled change of the server from the same start w_t (sections II
    and B-B2, which leave open how the server is weighed: here by gamma, through its rate).
    """

    def _start(self, before_P: Tensor, after_P: Tensor) -> Tensor:
        return before_P
