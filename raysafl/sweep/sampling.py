"""Draws the configurations of a search space: at random, or by a search algorithm.

Where neither a search algorithm nor a scheduler decides run by run, all configurations
can be drawn beforehand, and their runs advance in packs as those of a grid do.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from raysafl.core.needs import need
from raysafl.sweep.definition import Sweep

if TYPE_CHECKING:
    from ray.tune.search import Searcher

# The same command draws the same configurations, whose results are then recognised.
SEED = 0


def draw(space: Mapping[str, Any], num_samples: int) -> list[dict[str, Any]]:
    """Return configurations of a search space of Ray Tune, in the order of its drawing.

    They are those that Tune's own random sampler with the random state 0 draws.

    Args:
        space: the search space; `tune.grid_search` in it is expanded for each sample.
        num_samples: the number of samples.

    Raises:
        ValueError: Ray is not installed.

    Example:
        >>> from ray import tune
        >>> [c["x"] for c in draw({"x": tune.grid_search([1, 2])}, 1)]
        [1, 2]
        >>> draw({"x": tune.uniform(0, 1)}, 2) == draw({"x": tune.uniform(0, 1)}, 2)
        True
    """
    # Imported here, because a grid needs no Ray, whose import takes a second.
    need("ray", "a search space")
    from ray.tune.search.variant_generator import generate_variants

    rng = np.random.default_rng(SEED)
    return [
        dict(spec["config"])
        for _ in range(num_samples)
        for _, spec in generate_variants({"config": dict(space)}, random_state=rng)
    ]


def searcher_of(sweep: Sweep) -> "Searcher":
    """Return the search algorithm of a sweep, ready to suggest configurations.

    Args:
        sweep: a sweep with a search algorithm that is a `Searcher`.

    Raises:
        ValueError: it takes no search space.
    """
    # Imported here, because a grid needs no Ray, whose import takes a second.
    from ray.tune.search import Searcher, SearchGenerator

    searcher = sweep.search_alg
    if isinstance(searcher, SearchGenerator):
        searcher = searcher.searcher
    assert isinstance(searcher, Searcher), "only Tune itself can ask it"
    metric, mode = sweep.goal
    if not searcher.set_search_properties(metric, mode, dict(sweep.space)):
        raise ValueError(
            f"search_alg has a search space of its own, so it does not take that of sweep "
            f"'{sweep.name}'; make {type(searcher).__name__}(...) without one"
        )
    return searcher
