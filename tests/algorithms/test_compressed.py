"""Compressed uploads: what is sent, what is kept, and the bytes that are counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.played import played
from helpers.quadratics import play
from hypothesis import given
from hypothesis import strategies as st

from raysafl import SAFARI, Algorithm, FedAvg, Run, Train, Uniform
from raysafl.algorithms import (
    AFL,
    MIFA,
    SCAFFOLD,
    Compressed,
    Compression,
    FedAdam,
    FedAU,
    FedDyn,
    FedVARP,
    Key,
    Quantised,
    State,
    TopK,
)
from raysafl.core.algorithm import Round

ALL_OF_IT = TopK(fraction=1)
P = 650  # parameters of logistic regression on digits


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@given(
    numbers=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=50),
    fraction=st.floats(0.01, 1),
)
def test_top_k_sends_the_largest_and_nothing_else(
    numbers: list[float], fraction: float
) -> None:
    v = torch.tensor(numbers)
    sent = TopK(fraction=fraction).compress(v, rng())
    k = max(1, int(np.ceil(fraction * len(v) - 1e-9)))
    assert ((sent == v) | (sent == 0)).all()
    assert int((sent != 0).sum()) <= k
    left = (v - sent).abs().max()
    assert left <= v.abs().sort(descending=True).values[k - 1]


@given(
    numbers=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=50),
    bits=st.integers(2, 16),
    stochastic=st.booleans(),
)
def test_quantised_numbers_are_levels_next_to_the_true_ones(
    numbers: list[float], bits: int, stochastic: bool
) -> None:
    v = torch.tensor(numbers)
    sent = Quantised(bits=bits, stochastic=stochastic).compress(v, rng())
    width = float(v.abs().max()) / (2 ** (bits - 1) - 1)
    assert (sent - v).abs().max() <= width * (1 if stochastic else 0.5) + 1e-5
    levels = sent.double() / width if width else sent.double()
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-2)


def test_stochastic_rounding_is_right_in_the_mean() -> None:
    v = torch.tensor([1.0, -0.3, 0.05, 0.0])
    coarse = Quantised(bits=2)
    generator = rng()
    draws = torch.stack([coarse.compress(v, generator) for _ in range(4000)])
    # the levels are -1, 0 and 1, so the standard error of a mean is below 0.008
    torch.testing.assert_close(draws.mean(0), v, rtol=0, atol=0.03)
    assert set(draws.unique().tolist()) <= {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("bits", [2, 8])
def test_zeros_stay_and_numbers_that_are_not_finite_come_through(bits: int) -> None:
    kind = Quantised(bits=bits)
    assert torch.equal(kind.compress(torch.zeros(3), rng()), torch.zeros(3))
    assert not kind.compress(torch.tensor([1.0, torch.nan]), rng()).isfinite().all()
    assert not kind.compress(torch.tensor([1.0, torch.inf]), rng()).isfinite().all()


@pytest.mark.parametrize(
    ("compression", "expected"),
    [
        (TopK(fraction=0.01), 7 * (4 + 4)),  # 7 of 650, each with its index
        (TopK(fraction=0.1), 65 * 4 + 82),  # a bitmap of 650 bits is shorter
        (TopK(fraction=1), 650 * 4),
        (Quantised(bits=8), 4 + 650),
        (Quantised(bits=3), 4 + 244),
    ],
    ids=str,
)
def test_the_bytes_of_uploads_are_those_that_are_sent(
    compression: Compression, expected: int, tiny: Run
) -> None:
    assert compression.num_bytes(P) == expected
    algorithm = Compressed(compression=compression)
    _, records = played(tiny.replace(algorithm=algorithm, replicates=1))
    assert [r.bytes_up for r in records] == [3 * expected] * 4
    assert [r.bytes_down for r in records] == [3 * P * 4] * 4


def test_what_is_sent_besides_updates_is_counted_whole(tiny: Run) -> None:
    algorithm = Compressed(inner=SCAFFOLD(), compression=Quantised(bits=8))
    _, records = played(tiny.replace(algorithm=algorithm, replicates=1))
    assert [r.bytes_up for r in records] == [3 * (4 + P + 4 * P)] * 4


@pytest.mark.parametrize(
    "inner",
    [
        FedAvg(),
        FedAvg(weighted=True),
        FedAdam(),
        FedAU(),
        FedVARP(),
        MIFA(over="seen"),
        FedDyn(),
        SCAFFOLD(),
        AFL(memory=True),
        SAFARI(client_prob=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("error_feedback", [True, False])
def test_an_algorithm_that_sends_everything_is_itself_bitwise(
    inner: Algorithm, error_feedback: bool, tiny: Run
) -> None:
    algorithm = Compressed(
        inner=inner, compression=ALL_OF_IT, error_feedback=error_feedback
    )
    mine, theirs = (
        played(tiny.replace(algorithm=a, participation=Uniform(m=4)))[0]
        for a in (algorithm, inner)
    )
    for a, b in zip(mine.replicates, theirs.replicates, strict=True):
        assert torch.equal(a.state.w_P, b.state.w_P)
        for name, value in b.state.server.items():
            assert torch.equal(a.state.server[name], value)
        for i, row in b.state.clients.items():
            assert torch.equal(a.state.clients[i], row)


class Forgetting(Algorithm):
    """Keeps what the clients of this round sent, and forgets all others."""

    remembers_clients = True

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        update = yield Train(state.w_P, ids)
        return replace(state, clients=dict(zip(ids, update.delta_MP, strict=True)))


def test_what_the_inner_algorithm_forgets_stays_forgotten_and_residuals_stay() -> None:
    algorithm = Compressed(inner=Forgetting(), compression=TopK(fraction=0.5))
    state = play(algorithm, [[0, 1], [2]])
    assert set(state.clients) == {2, ~0, ~1, ~2}
    without = play(algorithm.replace(error_feedback=False), [[0, 1], [2]])
    assert set(without.clients) == {2}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Compressed(), "compression: Field required"),
        (lambda: TopK(fraction=0), "fraction: Input should be greater than 0"),
        (lambda: TopK(fraction=1.1), "fraction: Input should be less than or equal"),
        (lambda: Quantised(bits=1), "bits: Input should be greater than or equal to 2"),
        (
            lambda: Compressed(
                inner=SAFARI(inner=Compressed(compression=ALL_OF_IT)),
                compression=ALL_OF_IT,
            ),
            "Compressed cannot be compressed",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


class Sparse(Algorithm):
    """Declares the bytes of its own compressed updates."""

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        yield Train(state.w_P, ids, up_bytes=10)
        return state


def test_an_algorithm_that_compresses_itself_is_not_compressed_again(tiny: Run) -> None:
    algorithm = Compressed(inner=Sparse(), compression=ALL_OF_IT)
    with pytest.raises(ValueError, match="Sparse compresses its updates"):
        played(tiny.replace(algorithm=algorithm))
