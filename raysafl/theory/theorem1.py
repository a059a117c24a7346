"""SAFARI's theorem 1 as a simulation: what is never seen cannot be learned.

The construction is that of the proof (appendix A, method of induced distributions). P has a
common point x_1 of mass 1 - 4 eps and a rare point x_2 of mass 4 eps, eps = (1 - omega) / 8;
omega = m / M. M clients hold n samples each: S ~ P^(M n), sorted so that the common points come
first, is dealt out in order, and only the first m clients ever come. So the m n samples used
hold as many x_1 as possible, and no x_2 at all if S has fewer than (1 - omega) M n of them.
Two targets f_1, f_2 agree on x_1 and differ on x_2, and the learner cannot tell them apart.
The theorem says of every learner that for one of the targets
P[error > (1 - omega) / 8] > 1/20. The server's data T ~ P^(n_T) is simply added.

Readings: s ~ B(M n, 4 eps), as the Chernoff line has it (the line above prints B(M n, eps));
the proof shows "error >= eps", the theorem states ">": on two points an error on x_2 is 4 eps,
so both hold alike. The sum (3) of the proof prints x_1 where only x_2 can stand.

`rare` > 1 shares the mass 4 eps among several rare points, with random labels: the same
argument, with errors between 0 and 4 eps instead of either.

Suffixes: _T trials, _D points of the domain (0 is x_1).
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
    """All that a learner knows, in each trial: noiseless labels, so counts say everything.

    The hypotheses are all functions from the points to {-1, +1}.
    """

    counts_TD: Ints  # how often each point is in the training set
    labels_TD: Ints  # +1 or -1 where seen, else 0

    @property
    def vote_T1(self) -> Ints:
        """The label of most samples (+1 if even)."""
        return np.where((self.counts_TD * self.labels_TD).sum(1, keepdims=True) < 0, -1, 1)


Learner = Callable[[Seen, np.random.Generator], Ints]


def _consistent(seen: Seen, otherwise: Ints) -> Ints:
    """The label where seen, `otherwise` elsewhere."""
    return np.where(seen.counts_TD > 0, seen.labels_TD, otherwise)


def _coin(seen: Seen, rng: np.random.Generator) -> Ints:
    return 2 * rng.integers(2, size=seen.counts_TD.shape) - 1


def erm(seen: Seen, rng: np.random.Generator) -> Ints:
    """Empirical risk minimisation: the first consistent hypothesis, +1 where nothing is known."""
    return _consistent(seen, np.ones_like(seen.counts_TD))


def memorise(seen: Seen, rng: np.random.Generator) -> Ints:
    """Remembers what it saw, and throws a fair coin elsewhere."""
    return _consistent(seen, _coin(seen, rng))


def nearest(seen: Seen, rng: np.random.Generator) -> Ints:
    """The label of the nearest point seen, points in order on a line; the lower one if even."""
    place_D = np.arange(seen.counts_TD.shape[1])
    apart_DD = np.abs(place_D[:, None] - place_D)
    hidden_T1D = (seen.counts_TD == 0)[:, None]
    near_TD = np.where(hidden_T1D, len(place_D), apart_DD).argmin(-1)
    labels_TD: Ints = np.take_along_axis(seen.labels_TD, near_TD, 1)
    return labels_TD


def aware(seen: Seen, rng: np.random.Generator) -> Ints:
    """Knows of the adversary: what was hidden will differ from what was shown."""
    return _consistent(seen, np.broadcast_to(-seen.vote_T1, seen.counts_TD.shape))


def majority(seen: Seen, rng: np.random.Generator) -> Ints:
    """One label everywhere, that of most samples: not consistent, no data can help it."""
    return np.broadcast_to(seen.vote_T1, seen.counts_TD.shape)


def guess(seen: Seen, rng: np.random.Generator) -> Ints:
    """A fair coin for every point: no data can help it."""
    return _coin(seen, rng)


LEARNERS: dict[str, Learner] = {
    "ERM": erm,
    "memorise": memorise,
    "nearest neighbour": nearest,
    "adversary-aware": aware,
    "majority vote": majority,
    "random guess": guess,
}
CONSISTENT = ("ERM", "memorise", "nearest neighbour", "adversary-aware")  # err on the unseen only


@dataclass(frozen=True)
class World:
    """M clients of whom m come, n samples each, n_T at the server."""

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
        """(1 - omega) / 8: the error that the theorem promises."""
        return (1 - self.come / self.clients) / 8

    @property
    def mass_D(self) -> Floats:
        """P of each point: 1 - 4 eps, and 4 eps shared by the rare ones."""
        return np.array([1 - 4 * self.eps, *[4 * self.eps / self.rare] * self.rare])

    def training(self, trials: int, rng: np.random.Generator) -> Ints:
        """Counts [T, D] of what the clients who come hold: S sorted, its first m n samples."""
        drawn_TD = rng.multinomial(self.clients * self.samples, self.mass_D, size=trials)
        upto_TD = np.minimum(drawn_TD.cumsum(1), self.come * self.samples)
        counts_TD: Ints = np.diff(upto_TD, axis=1, prepend=0)
        return counts_TD

    def targets(self, trials: int, rng: np.random.Generator) -> list[Ints]:
        """f_1 and f_2 as labels [T, D]: equal on x_1, opposite on every rare point."""
        rare_TD = np.ones((trials, self.rare), np.int64)
        if self.rare > 1:
            rare_TD = 2 * rng.integers(2, size=rare_TD.shape) - 1
        return [np.insert(sign * rare_TD, 0, 1, axis=1) for sign in (1, -1)]


def errors(learner: str, world: World, trials: int, key: Key) -> Floats:
    """Errors P(h(x) != f(x)) of a learner: [2, trials], a row per target f_1, f_2.

    All learners see the same clients' data for the same key, whatever n_T is.
    """
    counts_TD = world.training(trials, key("theorem 1 clients"))
    server_TD = key("theorem 1 server", world.server).multinomial(
        world.server, world.mass_D, size=trials
    )
    counts_TD = counts_TD + server_TD
    rows = []
    for f, target_TD in enumerate(world.targets(trials, key("theorem 1 targets"))):
        seen = Seen(counts_TD, np.where(counts_TD > 0, target_TD, 0))
        said_TD = LEARNERS[learner](seen, key(f"theorem 1 {learner}", f))
        rows.append((said_TD != target_TD) @ world.mass_D)
    return np.stack(rows)


@dataclass(frozen=True)
class Found:
    """What one learner did in one world, under the target that is worse for it."""

    learner: str
    world: World
    errors_T: Floats

    @property
    def hits(self) -> int:
        """Trials with an error above (1 - omega) / 8 (to rounding)."""
        return int((self.errors_T > self.world.eps * (1 + 1e-9)).sum())

    @property
    def frequency(self) -> float:
        """Of such an error; the theorem says above 1/20 without server data."""
        return self.hits / len(self.errors_T)

    def quantiles(self, at: Sequence[float] = (0.1, 0.5, 0.9)) -> Floats:
        """Of the error."""
        return np.quantile(self.errors_T, at)


def experiment(
    worlds: Sequence[World], trials: int, seed: int = 0, learners: Sequence[str] = tuple(LEARNERS)
) -> list[Found]:
    """Every learner in every world; the target is the worse of the two, as in the theorem."""
    found = []
    for world in worlds:
        for learner in learners:
            both = [Found(learner, world, row) for row in errors(learner, world, trials, Key(seed))]
            found.append(max(both, key=lambda f: (f.hits, f.errors_T.mean())))
    return found


def lower(found: Found, confidence: float = 0.99) -> float:
    """Hoeffding's lower limit of the frequency, allowing for the choice between two targets."""
    trials = len(found.errors_T)
    return max(0.0, found.frequency - math.sqrt(math.log(2 / (1 - confidence)) / (2 * trials)))
