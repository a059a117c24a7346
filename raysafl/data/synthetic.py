"""Synthetic data whose users differ in model and inputs."""

import numpy as np
from pydantic import Field

from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.data.sources import Source, samples_of_users

DIMENSION = 60
CLASSES = 10


class Synthetic(Source):
    """Linear classification of users that differ from one another: alpha and beta.

    User k has the labels y = argmax(W_k x + b_k) with W_k, b_k ~ N(u_k, 1) and u_k ~
    N(0, alpha). Its inputs are x ~ N(v_k, Sigma) with Sigma_jj = j^-1.2, v_k ~ N(B_k, 1)
    and B_k ~ N(0, beta), so beta says how different their inputs are. User k has
    50 + floor(exp(N(4, 2))) samples, of which the last 10 % are for testing.

    alpha is the authors' parameter, but it changes no sample: all entries of W_k and b_k
    have the same mean u_k, which adds u_k (sum_j x_j + 1) to each of the ten outputs, and
    so leaves the largest where it is. The users' models differ as much for alpha = 0.

    Source: Li et al. 2020 (docs/papers.md#fedprox). As in the authors' code, alpha and
    beta are standard deviations; their text can be read as variances.
    """

    alpha: float = Field(
        default=1.0,
        ge=0,
        description="Spread of the users' mean weights, which changes no sample.",
    )
    beta: float = Field(default=1.0, ge=0, description="Spread of the users' inputs.")
    users: int = Field(default=30, gt=0, description="Number of users.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the data.")

    def load(self) -> Dataset:
        """Return x float32 [S, 60], y int64 [S] in 10 classes, and the user of each sample."""
        deviation = np.arange(1, DIMENSION + 1) ** -0.6
        users = []
        for user in range(self.users):
            rng = Key(self.seed)("synthetic", user)
            size = 50 + int(rng.lognormal(4, 2))
            u = rng.normal(0, self.alpha)
            W = rng.normal(u, 1, (DIMENSION, CLASSES))
            b = rng.normal(u, 1, CLASSES)
            v = rng.normal(rng.normal(0, self.beta), 1, DIMENSION)
            x = v + deviation * rng.standard_normal((size, DIMENSION))
            y = (x @ W + b).argmax(axis=1)
            # The first 90 % of a user's samples are for training.
            cut = int(0.9 * size)
            x = x.astype(np.float32)
            users.append(((x[:cut], y[:cut]), (x[cut:], y[cut:])))
        train, test = samples_of_users(users)
        return Dataset("synthetic", train, test, num_classes=CLASSES)
