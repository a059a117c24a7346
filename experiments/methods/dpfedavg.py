"""DP-FedAvg: federated averaging with differential privacy (docs/papers.md#dpfedavg).

A method in one file, with the public names of raysafl alone. `epsilon` needs the package
dp-accounting (`pip install dp-accounting`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

import raysafl as fl
from raysafl.algorithms import Key, State, Update
from raysafl.core.algorithm import Round
from raysafl.participation import Bernoulli


class DPFedAvg(fl.Algorithm):
    """FedAvg with clipped updates and Gaussian noise, so that no client can be recognised.

        Delta_i <- Delta_i min(1, S / |Delta_i|)          each client, before it sends
        w       <- w - lr (sum_i(Delta_i) / (q N) + noise)
        noise    ~ Normal(0, (z S / (q N))^2) for each parameter

    with S = `clip`, z = `noise` and the expected number q N of clients in a round, which
    is `cohort`. The sum is divided by this fixed number, never by the size of the cohort
    that participates: one client then changes the quotient by at most S / (q N). In a round in
    which nobody participates, the noise alone is added.

    `epsilon` tells the privacy of the released models, if neither the policy nor the
    choice of the model looks at clients' samples. What a run stores besides the models
    (training losses, accuracies, and who participated) is not private.

    Source: McMahan et al. 2018, ICLR, algorithm 1 with flat clipping. There, clients clip
    the change after each local step; here they clip it once, before they send it. Both
    keep |Delta_i| <= S, on which the privacy rests.
    """

    acts_without_clients: ClassVar[bool] = True
    clip: float = Field(gt=0, description="Largest L2 norm S of a client's update.")
    noise: float = Field(
        ge=0,
        description="Noise multiplier z: the noise in the sum of the updates has the "
        "standard deviation z S.",
    )
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")
    cohort: float = Field(
        gt=0,
        description="Expected number q N of clients in a round, by which the sum is "
        "divided: m under Uniform(m=...), N times the rate under Bernoulli(rate=...).",
    )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Sum the clipped updates and add the noise."""
        step_P = torch.zeros_like(state.w_P)
        if ids:
            update: Update = yield fl.Train(state.w_P, ids)
            norm_M1 = update.delta_MP.norm(dim=1, keepdim=True)
            shorter_M1 = (self.clip / norm_M1).clamp_max(1)
            step_P = (update.delta_MP * shorter_M1).sum(0) / self.cohort
        if self.noise:
            noise_P = torch.from_numpy(key("dp noise").standard_normal(len(step_P)))
            scale = self.noise * self.clip / self.cohort
            step_P = step_P + (scale * noise_P).to(step_P)
        return replace(state, w_P=state.w_P - self.lr * step_P)

    def epsilon(
        self,
        rounds: int,
        clients: int,
        participation: fl.Participation,
        delta: float,
    ) -> float:
        """Compute epsilon of the (epsilon, delta)-differential privacy after some rounds.

        It bounds what the models of all rounds together tell of one client's data, by the
        Rényi accountant of dp-accounting. Under Bernoulli with one rate q for all and no
        limit m, sampling amplifies it, and neighbours differ in one client that is there or
        not. Under Uniform, m of N are drawn without replacement, and neighbours differ in
        one client's data, so the sum may change by 2 S. Under any other policy nothing is
        amplified, as a client may participate in every round.

        Args:
            rounds: How many rounds the clients train.
            clients: The number N of all clients.
            participation: The policy of the run.
            delta: The probability delta.

        Returns:
            epsilon; infinity without noise.
        """
        import dp_accounting
        import dp_accounting.rdp

        if not self.noise:
            return math.inf
        gaussian = dp_accounting.GaussianDpEvent
        event = gaussian(self.noise)
        options = {}
        kind = type(participation)
        if kind is fl.Uniform and participation.m < clients:
            event = dp_accounting.SampledWithoutReplacementDpEvent(
                clients, participation.m, gaussian(self.noise / 2)
            )
            replaced = dp_accounting.NeighboringRelation.REPLACE_ONE
            options = {"neighboring_relation": replaced}
        elif kind is Bernoulli and participation == Bernoulli(rate=participation.rate):
            # Neither a limit m nor at_least_one, under which clients are not independent.
            if not isinstance(participation.rate, list):
                event = dp_accounting.PoissonSampledDpEvent(participation.rate, event)
        accountant = dp_accounting.rdp.RdpAccountant(**options)
        accountant.compose(event, rounds)
        return float(accountant.get_epsilon(delta))
