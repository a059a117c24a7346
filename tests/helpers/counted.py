"""An algorithm that counts the rounds that are computed, and Ctrl-C in one of them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from helpers.sweeps_here import go
from raysafl import FedAvg, Sweep
from raysafl.algorithms import Key, Round, State


class Counted(FedAvg):
    """FedAvg that counts the rounds that are computed, by seed, and stops in one of them."""

    computed: ClassVar[Counter[tuple[int, int]]] = Counter()
    at: ClassVar[int] = -1

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        # The size of a pack is estimated from a model of few parameters.
        if len(state.w_P) > 100:
            if self.at == key.round:
                raise KeyboardInterrupt
            self.computed[key.seed, key.round] += 1
        return super().round(state, ids, key)


def interrupted(at: int, out: Path, sweep: Sweep, **options: Any) -> None:
    """A sweep that Ctrl-C ends in a round, after each round was saved; counts anew."""
    Counted.at = at
    with pytest.raises(KeyboardInterrupt):
        go(sweep, out, **{"flush_seconds": 0.0, **options})
    Counted.at = -1
    Counted.computed.clear()
