"""The cohorts that FAST's code drew for its curves on Fashion-MNIST without snapshots.

With the seed 365, NumPy's legacy generator deals the images to the clients and then draws
the cohorts of one run, and nothing else. It draws as often as the classes are large, which
are 6,000 images each, so the images themselves need not be known.
"""

from functools import lru_cache

import numpy as np

import raysafl as fl
from experiments.fast.fedlab import FedLabDirichlet

CLIENTS = 100
SEED = 365
DRAWS = {
    "Beta": lambda legacy: legacy.beta(1, 10),
    "Gamma": lambda legacy: legacy.gamma(10, 0.01),
    "Weibull": lambda legacy: legacy.weibull(10) / 1.2,
}


@lru_cache
def known_cohorts(law, alpha, rounds, m=10):
    """Return the cohort of each round, in the order in which it was drawn.

    A draw times 100, cut to an integer, is a client; one that is taken already, or is no
    client, is drawn again.

    Args:
        law: A name in `DRAWS`.
        alpha: The concentration of the deal before it.
        rounds: The number of rounds.
        m: The number of clients of a cohort.
    """
    legacy = np.random.RandomState(SEED)
    labels = np.repeat(np.arange(10), 6000)
    FedLabDirichlet(alpha=alpha).deal(labels, 10, CLIENTS, legacy)
    cohorts = []
    for _ in range(rounds):
        chosen = []
        while len(chosen) < m:
            client = int(DRAWS[law](legacy) * CLIENTS)
            if client < CLIENTS and client not in chosen:
                chosen.append(client)
        cohorts.append(chosen)
    return cohorts


class KnownCohorts(fl.Participation):
    """The cohorts of the authors' run on their deal of seed 365, over 1,000 rounds."""

    law: str
    alpha: float

    def pick(self, state, num_clients, key, accuracy):
        """Return the cohort of the round."""
        cohorts = known_cohorts(self.law, self.alpha, 1000)
        return state, fl.Cohort(sorted(cohorts[key.round]))
