"""DP-FedAvg: federated averaging with differential privacy (docs/papers.md#dpfedavg)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field

from raysafl.core.algorithm import (
    Algorithm,
    MeanUpdate,
    Round,
    Setting,
    State,
    TrainMean,
)
from raysafl.core.needs import need
from raysafl.core.participation import Participation
from raysafl.core.randomness import Key


class DPFedAvg(Algorithm):
    """FedAvg with clipped updates and Gaussian noise, so that no client can be recognised.

        Delta_i <- Delta_i min(1, S / |Delta_i|)          each client, before it sends
        w       <- w - lr (sum_i(Delta_i) / (q N) + noise)
        noise    ~ Normal(0, (z S / (q N))^2) for each parameter

    with S = `clip`, z = `noise` and the expected number q N of clients in a round,
    which is `cohort`. The sum is divided by this fixed number, never by the size of the
    cohort that came: one client then changes the quotient by at most S / (q N). That is
    the paper's estimator f_f, with equal weights. In a round in which nobody comes, the
    noise alone is added.

    `epsilon` tells the privacy that the released models give to each client. What a run
    stores besides them (training losses and accuracies, and who came) is not private.

    Source: McMahan et al. 2018, ICLR, algorithm 1 with flat clipping
    (docs/papers.md#dpfedavg). There, clients clip the change after each local step;
    here they clip it once, before they send it. Both keep |Delta_i| <= S, on which the
    privacy rests.

    Example:
        >>> import raysafl as fl
        >>> fl.algorithms.DPFedAvg(clip=0.5, noise=1.0).to_json()
        '{"clip":0.5,"cohort":null,"kind":"DPFedAvg","lr":1.0,"noise":1.0}'
    """

    is_private: ClassVar[bool] = True
    acts_without_clients: ClassVar[bool] = True
    clip: float = Field(gt=0, description="Largest L2 norm S of a client's update.")
    noise: float = Field(
        ge=0,
        description="Noise multiplier z: the noise in the sum of the updates has the "
        "standard deviation z S.",
    )
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")
    cohort: float | None = Field(
        default=None,
        gt=0,
        description="Expected number q N of clients in a round, by which the sum is "
        "divided; None: as the policy says.",
    )

    def check(self, participation: Participation, num_clients: int) -> None:
        """Check that the expected number of clients in a round is known.

        Raises:
            ValueError: Neither `cohort` nor the policy tells it.
        """
        if self.cohort is None and participation.sampling(num_clients) is None:
            raise ValueError(
                "DPFedAvg divides by the expected number of clients in a round, which "
                f"{type(participation).__name__} does not tell, because its clients or "
                "rounds are not all alike; give DPFedAvg(cohort=...), or take "
                "Bernoulli(rate=...), Uniform(m=...) or Full()"
            )

    def prepare(self, setting: Setting) -> "DPFedAvg":
        """Return this algorithm with the expected number of clients filled in."""
        return self.replace(cohort=self.cohort or setting.cohort)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Average the clipped updates and add the noise."""
        assert self.cohort is not None, "prepare() fills in what depends on the run"
        step_P = torch.zeros_like(state.w_P)
        if ids:
            update: MeanUpdate = yield TrainMean(state.w_P, ids, max_norm=self.clip)
            # The mean is over those that came; the factor makes it a sum over q N.
            step_P = update.delta_P * (len(ids) / self.cohort)
        if self.noise:
            noise_P = torch.from_numpy(key("dp noise").standard_normal(len(step_P)))
            scale = self.noise * self.clip / self.cohort
            step_P = step_P + (scale * noise_P).to(step_P)
        return replace(state, w_P=state.w_P - self.lr * step_P)

    def epsilon(
        self,
        rounds: int,
        clients: int,
        participation: Participation,
        delta: float | None = None,
    ) -> float:
        """Compute epsilon of the (epsilon, delta)-differential privacy after some rounds.

        It bounds what the models of all rounds together tell of one client's data, by
        the Rényi accountant of the package dp-accounting. What it assumes depends on
        how the policy draws its cohorts (`Participation.sampling`):

        - Independently, such as `Bernoulli(rate=q)`: privacy is amplified by sampling
          with rate q, as in the paper. Federations are neighbours if one of them has
          one client more.
        - A fixed number without replacement, such as `Uniform(m=...)`: amplified by
          sampling m of N. Neighbours differ in one client's data (one is replaced), so
          the sum may change by 2 S.
        - Otherwise, and where all clients come: without amplification, as a client
          may come in every round and be known to. Federations are neighbours if in one
          of them one client sends zeros in place of its updates. The policy must not
          look at the clients' data.

        If the policy lets one client come where nobody would (`at_least_one`), the
        probability of such a round is taken from delta.

        Args:
            rounds: How many rounds the clients train.
            clients: The number N of all clients.
            participation: The policy of the run.
            delta: The probability delta; None for N^-1.1, the paper's choice.

        Returns:
            epsilon; infinity without noise.

        Raises:
            ValueError: An argument is out of range, rounds in which nobody would come
                are too likely, or the package dp-accounting is not installed.

        Example:
            >>> import raysafl as fl
            >>> algorithm = fl.algorithms.DPFedAvg(clip=1.0, noise=0.0)
            >>> algorithm.epsilon(rounds=10, clients=100, participation=fl.Uniform(m=5))
            inf
        """
        delta = max(1, clients) ** -1.1 if delta is None else delta
        if rounds < 1 or clients < 1 or not 0 < delta < 1:
            raise ValueError(
                f"rounds={rounds} and clients={clients} must be at least 1, and "
                f"delta={delta} between 0 and 1"
            )
        participation.check(clients)
        if not self.noise:
            return math.inf
        accounting = _accounting()
        gaussian = accounting.GaussianDpEvent
        sampling = participation.sampling(clients)
        if sampling is None or sampling.cohort >= clients:
            return _epsilon(accounting, gaussian(self.noise), rounds, delta)
        if sampling.is_fixed:
            # Replacing a client changes the sum by up to 2 S, so that relative to this the
            # noise is half as large.
            event = accounting.SampledWithoutReplacementDpEvent(
                clients, int(sampling.cohort), gaussian(self.noise / 2)
            )
            relation = accounting.NeighboringRelation.REPLACE_ONE
            return _epsilon(
                accounting, event, rounds, delta, neighboring_relation=relation
            )
        rate = sampling.cohort / clients
        event = accounting.PoissonSampledDpEvent(rate, gaussian(self.noise))
        if not sampling.at_least_one:
            return _epsilon(accounting, event, rounds, delta)
        return _independent_epsilon(accounting, event, rounds, delta, clients, rate)


def _accounting() -> Any:
    """Import dp-accounting with its Rényi accountant.

    Raises:
        ValueError: It is not installed.
    """
    need("dp_accounting", "the epsilon of DPFedAvg")
    import dp_accounting
    import dp_accounting.rdp

    return dp_accounting


def _epsilon(
    accounting: Any, event: Any, rounds: int, delta: float, **options: Any
) -> float:
    """Return epsilon of an event that happens in each of some rounds."""
    accountant = accounting.rdp.RdpAccountant(**options)
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def _independent_epsilon(
    accounting: Any, event: Any, rounds: int, delta: float, clients: int, rate: float
) -> float:
    """Return epsilon where each client comes with probability `rate`, and one in any case.

    Rounds in which nobody comes, whose probability is at most
    t = rounds (1 - rate)^(clients - 1), differ from the sampling that is analysed. If
    that sampling gives (epsilon, d), then ours gives (epsilon, d + (1 + e^epsilon) t).
    Half of delta is more than enough for the second part, as a smaller d gives a larger
    epsilon; the rest is d.

    Raises:
        ValueError: (1 + e^epsilon) t is more than half of delta.
    """
    at_most = _epsilon(accounting, event, rounds, delta / 2)
    nobody = rounds * (1 - rate) ** (clients - 1)
    # The logarithm cannot overflow, however large epsilon is.
    log_spent = (
        math.log(nobody) + (at_most + math.log1p(math.exp(-at_most)))
        if nobody
        else -math.inf
    )
    if log_spent > math.log(delta / 2):
        raise ValueError(
            f"with {clients} clients that come with probability {rate} each, rounds in "
            f"which nobody comes are too likely ({nobody:.2g} in {rounds} rounds) to "
            "say what privacy one gets; take more clients, a higher rate, or "
            "Uniform(m=...)"
        )
    return _epsilon(accounting, event, rounds, delta - math.exp(log_spent))
