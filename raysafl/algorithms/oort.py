"""Oort: clients are selected by the utility of their samples (docs/papers.md#oort)."""

import math
from collections.abc import Sequence

import torch
from pydantic import Field

from raysafl.algorithms.selection import Choice, Losses, Memory, Selection, Told
from raysafl.core.algorithm import CountSamples, index_of
from raysafl.core.randomness import Key


class Oort(Selection):
    """Clients are sampled by the loss of their last training, and some that never trained.

    In round t, counted from 1, epsilon = max(minimum, exploration * decay^t). Of the m clients,
    m - floor((1 - epsilon) m) are drawn uniformly among the available ones that have not trained
    yet. The other e clients are drawn among those that have, without replacement, with
    probabilities proportional to

        s_i = u_i + sqrt(0.1 ln(t) / last_i)

    where only clients count whose s_i is at least `cut_off` times the e-th largest. If there are
    too few clients of one kind, more of the other are drawn. last_i is the round in which client i
    trained last. u_i is U_i = |B_i| loss_i, clipped at the quantile `clip` of these clients' U and
    scaled to [0, 1]. loss_i is the mean loss of client i's last training, and |B_i| the number of
    its samples, or of those that it trained on if these are fewer.

    A selection does not know the times of devices (`Devices`), so there is neither a factor for
    slow clients nor a pacer, and clients that have not trained are not drawn by their speed. A
    client tells its mean loss; the paper's U_i has the root of the mean of squared losses.

    Source: Lai et al. 2021, OSDI, algorithm 1 (docs/papers.md#oort). That U is scaled is from the
    authors' program, which has decay=0.95, cut_off=0.7 and clip=0.98. That clients are no longer
    selected after many rounds is off there, and left out here.
    """

    exploration: float = Field(default=0.9, ge=0, le=1, description="First epsilon.")
    decay: float = Field(default=0.98, gt=0, le=1, description="Its factor in a round.")
    minimum: float = Field(default=0.2, ge=0, le=1, description="Least epsilon.")
    cut_off: float = Field(default=0.95, ge=0, le=1, description="Least relative s_i.")
    clip: float = Field(default=0.95, ge=0, le=1, description="Quantile of the clip.")

    def init(self, num_clients: int) -> Memory:
        """Start with clients that have not trained."""
        zero_N = torch.zeros(num_clients, dtype=torch.int64)
        return {"loss": zero_N.double(), "seen": zero_N, "last": zero_N}

    def select(
        self, ids: Sequence[int], memory: Memory, key: Key, losses: Losses
    ) -> Choice:
        """Draw among the clients that have trained, and among those that have not."""
        samples_M = yield CountSamples(ids)
        all_M = index_of(ids)
        last_M = memory["last"][all_M]
        new_M = all_M[last_M == 0].numpy()
        old_M = all_M[last_M > 0]
        time = key.round + 1
        epsilon = max(self.minimum, self.exploration * self.decay**time)
        explore = min(len(new_M), self.m - int((1 - epsilon) * self.m))
        explore = max(explore, self.m - len(old_M))
        drawn: list[int] = key("explore").choice(new_M, explore, replace=False).tolist()
        if exploit := self.m - explore:
            seen_M = samples_M[last_M > 0].minimum(memory["seen"][old_M])
            utility_M = seen_M * memory["loss"][old_M]
            place = min(int(self.clip * len(old_M)), len(old_M) - 1)
            utility_M = utility_M.clamp_max(utility_M.sort().values[place])
            above_M = utility_M - utility_M.min()
            wait_M = 0.1 * math.log(time) / last_M[last_M > 0]
            # The range is that of the program, where all utilities are alike.
            score_M = above_M / above_M.max().clamp_min(1e-4) + wait_M.sqrt()
            least = self.cut_off * score_M.sort(descending=True).values[exploit - 1]
            chance_M = score_M * (score_M >= least)
            chance_M = (chance_M / chance_M.sum()).numpy()
            best = key("exploit").choice(old_M.numpy(), exploit, False, chance_M)
            drawn += best.tolist()
        return sorted(drawn)

    def learn(self, memory: Memory, told: Told) -> Memory:
        """Remember the losses of those who have trained, and when they did."""
        row_M = torch.full_like(told.ids_M, told.round + 1)
        news = {
            "loss": told.loss_M.double(),
            "seen": told.samples_M.long(),
            "last": row_M,
        }
        return {k: own.index_put((told.ids_M,), news[k]) for k, own in memory.items()}
