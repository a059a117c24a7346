"""Draw docs/policies/: the cohorts of 60 rounds under each participation policy.

    python docs/policies_picture.py

The cohorts are those that the policies of raysafl pick for seed 0. A cell of a picture has
CELL pixels on each side, and the axes begin at CORNER, so that a test can read it.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import raysafl as fl

ROUNDS, CLIENTS, CELL = 60, 20, 8
# Pixels from the left and from the top, and what is below.
CORNER, BELOW = (64, 8), 56
AWAY, CAME, ENFORCED = (241, 243, 245), (59, 104, 159), (217, 84, 30)
P = fl.participation
BETA = P.Beta(a=0.5, b=2.0)
RATES = [round(0.05 * (i + 1), 2) for i in range(CLIENTS)]
POLICIES = {
    "uniform": fl.Uniform(m=5),
    "absent": fl.Absent(s=6, m=5),
    "bernoulli": P.Bernoulli(rate=RATES),
    "markov": P.Markov(mean=0.3, correlation=0.9),
    "varying": P.Varying(
        base=0.8,
        factor=P.Sine(amplitude=0.6, mean=0.5, period=24),
        shift=[0.0] * (CLIENTS // 2) + [10.0] * (CLIENTS // 2),
    ),
    "separation": P.MinimumSeparation(base=P.Full(), rounds=3, m=4),
    "cyclic": P.Cyclic(groups=4, length=5, m=4),
    "arbitrary": P.Arbitrary(dist=BETA, m=5),
    "arbitrary_rates": P.ArbitraryRates(dist=BETA),
    "snapshot": fl.Snapshot(
        base=P.Arbitrary(dist=BETA, m=5), uniform=fl.Uniform(m=5), every=10
    ),
}


def presence(policy: fl.Participation) -> np.ndarray:
    """Return [CLIENTS, ROUNDS]: 0 where a client is away, 1 where it comes, 2 if it has to."""
    cells = np.zeros((CLIENTS, ROUNDS), int)
    state = policy.init()
    for t in range(ROUNDS):
        key = fl.algorithms.Key(0, t)
        state, cohort = policy.pick(state, CLIENTS, key, None)
        # Under a policy that is uniform by itself, every round counts as enforced.
        is_snapshot = cohort.enforced and isinstance(policy, fl.Snapshot)
        cells[cohort.ids, t] = 2 if is_snapshot else 1
    return cells


def draw(cells: np.ndarray, file: Path) -> None:
    """Draw a picture in which each cell has CELL x CELL pixels."""
    width, height = CELL * ROUNDS, CELL * CLIENTS
    size = (CORNER[0] + width + 16, CORNER[1] + height + BELOW)
    figure = plt.figure(figsize=(size[0] / 100, size[1] / 100), dpi=100)
    left, bottom = CORNER[0] / size[0], BELOW / size[1]
    axes = figure.add_axes((left, bottom, width / size[0], height / size[1]))
    colours = ListedColormap(np.array([AWAY, CAME, ENFORCED]) / 255)
    extent = (0, ROUNDS, CLIENTS, 0)
    axes.imshow(cells, colours, vmin=0, vmax=2, extent=extent, aspect="auto")
    axes.set(xlabel="round", ylabel="client", yticks=[0, 5, 10, 15, 20])
    for side in axes.spines.values():
        side.set_visible(False)
    figure.savefig(file, dpi=100)
    plt.close(figure)


def main() -> None:
    """Draw all pictures."""
    folder = Path(__file__).parent / "policies"
    folder.mkdir(exist_ok=True)
    for name, policy in POLICIES.items():
        draw(presence(policy), folder / f"{name}.png")


if __name__ == "__main__":
    main()
