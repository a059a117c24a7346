"""SAFARI's theorem 1 as a simulation: what is never seen cannot be learned.

The construction is that of the proof (appendix A, method of induced distributions). P
has a common point x_1 of mass 1 - 4 eps and a rare point x_2 of mass 4 eps, eps = (1 -
omega) / 8; omega = m / M. M clients hold n samples each: S ~ P^(M n), sorted so that
the common points come first, is dealt out in order, and only the first m clients ever
come. So the m n samples used hold as many x_1 as possible, and no x_2 at all if S has
fewer than (1 - omega) M n of them. Two targets f_1, f_2 agree on x_1 and differ on x_2,
and the learner cannot tell them apart. The theorem says of every learner that for one
of the targets P[error > (1 - omega) / 8] > 1/20. The server's data T ~ P^(n_T) is
simply added.

Readings: s ~ B(M n, 4 eps), as the Chernoff line has it (the line above prints B(M n,
eps)); the proof shows "error >= eps", the theorem states ">": on two points an error on
x_2 is 4 eps, so both hold alike. The sum (3) of the proof prints x_1 where only x_2 can
stand.

`rare` > 1 shares the mass 4 eps among several rare points, with random labels: the same
argument, with errors between 0 and 4 eps instead of either.

Here the suffix _T stands for trials and _D for points of the domain (0 is x_1).
Source: docs/papers.md#safari.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raysafl.core.randomness import Key

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """All that a learner knows in each trial. Labels have no noise, so counts say everything.

    The hypotheses are all functions from the points to {-1, +1}.
    """

    # How often each point is in the training set.
    counts_TD: Ints
    # +1 or -1 where seen, else 0.
    labels_TD: Ints

    @property
    def vote_T1(self) -> Ints:
        """Return the label of most samples, +1 if there are equally many."""
        return np.where(
            (self.counts_TD * self.labels_TD).sum(1, keepdims=True) < 0, -1, 1
        )


Learner = Callable[[Seen, np.random.Generator], Ints]


def _consistent(seen: Seen, otherwise: Ints) -> Ints:
    """Return the label of points that were seen, and `otherwise` for the others."""
    return np.where(seen.counts_TD > 0, seen.labels_TD, otherwise)


def _coin(seen: Seen, rng: np.random.Generator) -> Ints:
    """Throw a fair coin for the label of every point."""
    return 2 * rng.integers(2, size=seen.counts_TD.shape) - 1


def erm(seen: Seen, rng: np.random.Generator) -> Ints:
    """Minimise the empirical risk; predict +1 for points that were not seen."""
    return _consistent(seen, np.ones_like(seen.counts_TD))


def memorise(seen: Seen, rng: np.random.Generator) -> Ints:
    """Remember the points that were seen, and throw a fair coin for the others."""
    return _consistent(seen, _coin(seen, rng))


def nearest_neighbour(seen: Seen, rng: np.random.Generator) -> Ints:
    """Predict the label of the nearest point that was seen; the points lie on a line.

    Of two points at the same distance, the lower one counts.
    """
    position_D = np.arange(seen.counts_TD.shape[1])
    apart_DD = np.abs(position_D[:, None] - position_D)
    hidden_T1D = (seen.counts_TD == 0)[:, None]
    near_TD = np.where(hidden_T1D, len(position_D), apart_DD).argmin(-1)
    labels_TD: Ints = np.take_along_axis(seen.labels_TD, near_TD, 1)
    return labels_TD


def aware(seen: Seen, rng: np.random.Generator) -> Ints:
    """Expect an adversary: points that were hidden get the other label."""
    return _consistent(seen, np.broadcast_to(-seen.vote_T1, seen.counts_TD.shape))


def majority(seen: Seen, rng: np.random.Generator) -> Ints:
    """Predict the label of most samples for every point, which no data can improve."""
    return np.broadcast_to(seen.vote_T1, seen.counts_TD.shape)


def guess(seen: Seen, rng: np.random.Generator) -> Ints:
    """Throw a fair coin for every point, which no data can improve."""
    return _coin(seen, rng)


LEARNERS: dict[str, Learner] = {
    "ERM": erm,
    "memorise": memorise,
    "nearest neighbour": nearest_neighbour,
    "adversary-aware": aware,
    "majority vote": majority,
    "random guess": guess,
}
# These learners err only on points that were not seen.
CONSISTENT = ("ERM", "memorise", "nearest neighbour", "adversary-aware")


@dataclass(frozen=True)
class World:
    """The setting of the theorem.

    Attributes:
        clients: the number M of clients.
        come: the number m of clients that ever come.
        samples: the number n of samples of each client.
        server: the number n_T of samples at the server.
        rare: the number of rare points.
    """

    clients: int = 10
    come: int = 5
    samples: int = 100
    server: int = 0
    rare: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.come < self.clients:
            raise ValueError(
                f"m = {self.come} of M = {self.clients} clients come; theorem 1 needs 0 < m < M"
            )
        if min(self.samples, self.rare) < 1 or self.server < 0:
            raise ValueError(
                "samples and rare must be at least 1, server at least 0; given "
                f"{self.samples}, {self.rare}, {self.server}"
            )

    @property
    def eps(self) -> float:
        """Return (1 - omega) / 8, the error that the theorem promises."""
        return (1 - self.come / self.clients) / 8

    @property
    def mass_D(self) -> Floats:
        """Return the probability of each point: 1 - 4 eps, and 4 eps for all rare ones."""
        return np.array([1 - 4 * self.eps, *[4 * self.eps / self.rare] * self.rare])

    def training(self, trials: int, rng: np.random.Generator) -> Ints:
        """Return what the clients that come hold, [T, D]: the first m n sorted samples."""
        drawn_TD = rng.multinomial(
            self.clients * self.samples, self.mass_D, size=trials
        )
        # Points are dealt out in sorted order, so the clients that come hold the first
        # m n.
        upto_TD = np.minimum(drawn_TD.cumsum(1), self.come * self.samples)
        counts_TD: Ints = np.diff(upto_TD, axis=1, prepend=0)
        return counts_TD

    def targets(self, trials: int, rng: np.random.Generator) -> list[Ints]:
        """Return f_1 and f_2 as labels [T, D]: equal on x_1, opposite on every rare point."""
        rare_TD = np.ones((trials, self.rare), np.int64)
        if self.rare > 1:
            rare_TD = 2 * rng.integers(2, size=rare_TD.shape) - 1
        return [np.insert(sign * rare_TD, 0, 1, axis=1) for sign in (1, -1)]


def errors(learner: str, world: World, trials: int, key: Key) -> Floats:
    """Return the errors P(h(x) != f(x)) of a learner, [2, trials], for the targets f_1 and f_2.

    With the same key, all learners see the same clients' data, whatever n_T is.

    Args:
        learner: a name in `LEARNERS`.
        world: the setting.
        trials: the number of trials.
        key: the only source of randomness.
    """
    counts_TD = world.training(trials, key("theorem 1 clients"))
    server_TD = key("theorem 1 server", world.server).multinomial(
        world.server, world.mass_D, size=trials
    )
    counts_TD = counts_TD + server_TD
    rows = []
    for f, target_TD in enumerate(world.targets(trials, key("theorem 1 targets"))):
        seen = Seen(counts_TD, np.where(counts_TD > 0, target_TD, 0))
        predicted_TD = LEARNERS[learner](seen, key(f"theorem 1 {learner}", f))
        rows.append((predicted_TD != target_TD) @ world.mass_D)
    return np.stack(rows)


@dataclass(frozen=True)
class TheoremOutcome:
    """The errors of one learner in one world, for the target that is worse for it."""

    learner: str
    world: World
    errors_T: Floats

    @property
    def hits(self) -> int:
        """Count the trials with an error above (1 - omega) / 8, up to rounding."""
        return int((self.errors_T > self.world.eps * (1 + 1e-9)).sum())

    @property
    def frequency(self) -> float:
        """Return the share of such trials; the theorem says more than 1/20 without server data."""
        return self.hits / len(self.errors_T)

    def quantiles(self, at: Sequence[float] = (0.1, 0.5, 0.9)) -> Floats:
        """Return quantiles of the error over the trials."""
        return np.quantile(self.errors_T, at)


def experiment(
    worlds: Sequence[World],
    trials: int,
    seed: int = 0,
    learners: Sequence[str] = tuple(LEARNERS),
) -> list[TheoremOutcome]:
    """Try every learner in every world, with the worse of the two targets, as in the theorem.

    Args:
        worlds: the settings.
        trials: the number of trials for each learner and world.
        seed: the seed.
        learners: names in `LEARNERS`.
    """
    found = []
    for world in worlds:
        for learner in learners:
            both = [
                TheoremOutcome(learner, world, row)
                for row in errors(learner, world, trials, Key(seed))
            ]
            found.append(max(both, key=lambda f: (f.hits, f.errors_T.mean())))
    return found


def lower(found: TheoremOutcome, confidence: float = 0.99) -> float:
    """Return Hoeffding's lower limit of the frequency, for the worse of two targets.

    Source: docs/papers.md#hoeffding-inequality."""
    trials = len(found.errors_T)
    return max(
        0.0, found.frequency - math.sqrt(math.log(2 / (1 - confidence)) / (2 * trials))
    )
