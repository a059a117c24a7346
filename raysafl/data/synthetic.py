"""Made data with two knobs of heterogeneity."""

import numpy as np
from pydantic import Field

from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key
from raysafl.data.sources import Source

DIMENSION, CLASSES = 60, 10


class Synthetic(Source):
    """Synthetic(alpha, beta): logistic data of unlike users (Li et al. 2020, FedProx; LEAF).

    User k: y = argmax(W_k x + b_k), W_k and b_k ~ N(u_k, 1), u_k ~ N(0, alpha), so alpha says
    how unlike the users' models are; x ~ N(v_k, Sigma), Sigma_jj = j^-1.2, v_k ~ N(B_k, 1),
    B_k ~ N(0, beta), so beta says how unlike their inputs are. alpha and beta are standard
    deviations, as in the authors' code (their text reads as variances). User k has
    50 + floor(exp(N(4, 2))) samples; the last 10 % of each are for the test, as in that code.
    """

    alpha: float = Field(default=1.0, ge=0)
    beta: float = Field(default=1.0, ge=0)
    users: int = Field(default=30, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**63)

    def load(self) -> Dataset:
        """x float32 [n, 60], 10 classes, and the user of each sample."""
        deviation = np.arange(1, DIMENSION + 1) ** -0.6
        parts: list[list[tuple[np.ndarray, ...]]] = [[], []]
        for user in range(self.users):
            rng = Key(self.seed)("synthetic", user)
            size = 50 + int(rng.lognormal(4, 2))
            u = rng.normal(0, self.alpha)
            W, b = rng.normal(u, 1, (DIMENSION, CLASSES)), rng.normal(u, 1, CLASSES)
            v = rng.normal(rng.normal(0, self.beta), 1, DIMENSION)
            x = v + deviation * rng.standard_normal((size, DIMENSION))
            y = (x @ W + b).argmax(axis=1)
            cut = int(0.9 * size)
            for part, rows in zip(parts, (slice(cut), slice(cut, None)), strict=True):
                part.append((x[rows].astype(np.float32), y[rows], np.full(len(y[rows]), user)))
        train, test = (
            Samples(x, y.astype(np.int64), users=users)
            for x, y, users in (map(np.concatenate, zip(*part, strict=True)) for part in parts)
        )
        return Dataset("synthetic", train, test, num_classes=CLASSES)
