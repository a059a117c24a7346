"""CA-Fed: correlated and rarely available clients may be left out (docs/papers.md#ca-fed)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.bases import KnowsLocalTraining
from raysafl.core.algorithm import CountSamples, Round, State, Train, index_of
from raysafl.core.randomness import Key


class CAFed(KnowsLocalTraining):
    """Correlated and rarely available clients are left out if that lowers an estimated error.

        w <- w - lr * sum_i(a_i / pi_i Delta_i)         over the available clients that are kept

    a_i is client i's share of all samples, and pi_i the share of rounds in which it was available.
    Each round begins with all N clients kept, and goes through them twice: by falling |lambda_i|,
    then by rising pi_i. A client is left out if that lowers, by at least `tolerance`,

        sum_i(v_i F_i) + bias * max_i(F_i) * TV(a, v)^2

    where v_i is a_i over the sum of the kept clients' a, or 0 for a client that is left out, and TV
    the total variation distance. F_i is the loss of the global model on client i's training samples
    when it was last available, at first the mean of those in the first round with any clients. The
    least possible loss, which the paper subtracts, is taken to be 0. lambda_i is
    P(on | on) + P(off | off) - 1, the correlation of availability in successive rounds.

    pi_i and the two probabilities are estimated from the rounds so far, with this one, and from
    `prior_rounds` rounds before the run, in which each was 1/2; the paper leaves the prior open.

    All available clients send their losses; who is left out does not train.

    Source: Rodio et al. 2023, INFOCOM, algorithm 1 (docs/papers.md#ca-fed).
    """

    acts_without_clients: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")
    bias: float = Field(default=1.0, ge=0, description="Weight of the error by bias.")
    tolerance: float = Field(default=0.0, ge=0, description="Least fall of the error.")
    prior_rounds: float = Field(
        default=2.0, gt=0, description="Rounds before the run that the estimates count."
    )
    over_all_rounds: bool = Field(
        default=False,
        description="Whether, as in the authors' program, P(on | on) is the number of rounds with "
        "the client available in it and in the one before over that of all rounds, P(off | off) "
        "likewise, and nobody is available before round 0.",
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with no round, and without losses."""
        zero_N = torch.zeros(num_clients, dtype=torch.float64)
        # In the first round, -1 is neither on nor off before.
        last_N = zero_N if self.over_all_rounds else zero_N - 1
        counts = dict.fromkeys(("on", "on_on", "off_off"), zero_N)
        server = {"rounds": torch.tensor(0), "last": last_N, "loss": zero_N * torch.nan}
        return State(w_P, server | counts)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Note who is available and with which loss, and train those who are kept."""
        server = dict(state.server)
        pi_N, lambda_N = self._estimates(server, ids)
        w_P = state.w_P
        if ids:
            loss_M = (yield from self.losses(w_P, ids)).double()
            loss_N = server["loss"]
            if loss_N.isnan().all():
                loss_N = loss_M.mean().expand(len(loss_N))
            server["loss"] = loss_N.index_put((index_of(ids),), loss_M)
            samples_N = yield CountSamples(range(len(loss_N)))
            a_N = samples_N / samples_N.sum(dtype=torch.float64)
            orders = [(-lambda_N.abs()).argsort(stable=True), pi_N.argsort(stable=True)]
            kept = self._kept(a_N, server["loss"], torch.cat(orders).tolist())
            if chosen := [i for i in ids if i in kept]:
                # They have got the model with the request for their losses.
                update = yield Train(w_P, chosen, extra_down=-1)
                weight_M1 = (a_N / pi_N)[chosen].to(w_P)[:, None]
                w_P = w_P - self.lr * (weight_M1 * update.delta_MP).sum(0)
        return State(w_P, server)

    def _estimates(
        self, server: dict[str, Tensor], ids: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Add this round to the counts in `server`, and return pi and lambda of all clients."""
        last_N = server["last"]
        now_N = torch.zeros_like(last_N)
        now_N[index_of(ids)] = 1
        rounds = server["rounds"] = server["rounds"] + 1
        on_N = server["on"] = server["on"] + now_N
        on_on_N = server["on_on"] = server["on_on"] + (last_N == 1) * now_N
        off_off_N = server["off_off"] = server["off_off"] + (last_N == 0) * (1 - now_N)
        server["last"] = now_N
        prior = self.prior_rounds
        pi_N = (on_N + prior / 2) / (rounds + prior)
        # Only rounds before this one have a next one.
        after_on_N = on_N - now_N
        after_off_N = rounds - 1 - after_on_N
        if self.over_all_rounds:
            after_on_N = after_off_N = rounds
            prior = 2 * prior
        stays_on_N = (on_on_N + prior / 4) / (after_on_N + prior / 2)
        stays_off_N = (off_off_N + prior / 4) / (after_off_N + prior / 2)
        return pi_N, stays_on_N + stays_off_N - 1

    def _kept(self, a_N: Tensor, loss_N: Tensor, order: list[int]) -> set[int]:
        """Return the clients that are not left out; TV(a, v) is 1 less the sum of their a."""
        # A client without samples has no weight, and cannot train.
        kept = set(a_N.nonzero().flatten().tolist())
        largest = self.bias * float(loss_N.max())
        part_2N = torch.stack([a_N, a_N * loss_N]).tolist()
        total_2 = [sum(part_2N[0]), sum(part_2N[1])]
        for i in order:
            if i not in kept or len(kept) == 1:
                continue
            less_2 = [
                total - part_N[i]
                for total, part_N in zip(total_2, part_2N, strict=True)
            ]
            errors = [
                loss / a + largest * (1 - a) ** 2 for a, loss in (total_2, less_2)
            ]
            if errors[0] - errors[1] >= self.tolerance:
                kept.remove(i)
                total_2 = less_2
        return kept
