"""Random streams, and the small vocabulary beside them."""

import dataclasses
import hashlib
import inspect
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysafl
from raysafl import Algorithm, LocalTraining, Train, TrainMean
from raysafl.algorithms import (
    SERVER,
    Key,
    MeanUpdate,
    Round,
    State,
    Update,
)


def test_a_key_leaves_the_global_generators_alone() -> None:
    before = torch.random.get_rng_state()
    Key(1).torch("init").seed()
    Key(1)("init").random(9)
    assert torch.equal(before, torch.random.get_rng_state())


# Digests of what NumPy 2.0 to 2.4 draw. A later version may draw otherwise (NEP 19).
EVEN = np.arange(0, 20_000, 2)
DRAWS: dict[str, Callable[[np.random.Generator], Any]] = {
    "b401e72c6b8b": lambda rng: rng.permutation(10_000),
    "17b51f4e52b9": lambda rng: rng.permutation(EVEN),
    "755c70fb8867": lambda rng: rng.choice(10**6, 100, replace=False),
    "25c0a688d991": lambda rng: rng.choice(10_000, 5_000, replace=False),
    "17cd80d6ee79": lambda rng: rng.choice(EVEN, 300, replace=False),
}


@pytest.mark.parametrize("digest", DRAWS)
def test_numpy_draws_what_it_drew_when_partitions_were_dealt(digest: str) -> None:
    drawn = DRAWS[digest](Key(3, 5)("deal", 7)).astype("<i8").tobytes()
    assert hashlib.sha256(drawn).hexdigest()[:12] == digest, (
        f"NumPy {np.__version__} draws otherwise: every partition and cohort changes"
    )


# How a purpose is written: where a generator is made, as an argument, or as a default.
PURPOSE = re.compile(
    r"\b(?:(?:key|Key\([^()]*\)|checksum)(?:\.torch)?\(\s*|key, |tasks, "
    r'|keys(?:_\w)?, )f?"([^"{]+)'
    r'|\bpurpose(?:: str)? = "([^"]+)',
    re.IGNORECASE,
)


def test_no_two_places_of_the_package_draw_from_one_stream() -> None:
    root = Path(raysafl.__file__).parent
    found = [
        purpose or default
        for path in root.rglob("*.py")
        if path != root / "core" / "randomness.py"
        for purpose, default in PURPOSE.findall(path.read_text())
    ]
    known = {"at most", "batches", "cohort", "init", "pass", "safari", "validation"}
    assert known <= {*found}
    assert len({zlib.crc32(purpose.encode()) for purpose in found}) == len(found)


@pytest.mark.parametrize(
    "length", [{}, {"epochs": 1, "steps": 1}], ids=["neither", "both"]
)
def test_sgd_needs_epochs_or_steps(length: dict[str, int]) -> None:
    with pytest.raises(
        ValueError,
        match=r"LocalTraining: give epochs=... or steps=..., exactly one of them",
    ):
        LocalTraining(lr=0.1, batch_size=4, **length)


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 5))
def test_num_steps_counts_the_batches_of_all_passes(
    samples: int, batch: int, epochs: int
) -> None:
    a_pass = len(range(0, samples, batch))
    assert (
        LocalTraining(lr=1, batch_size=batch, epochs=epochs).num_steps(samples)
        == epochs * a_pass
    )
    assert (
        LocalTraining(lr=1, batch_size=batch, steps=epochs).num_steps(samples) == epochs
    )


def test_help_describes_each_argument_of_what_an_algorithm_yields_and_is_sent() -> None:
    def described(kind: type) -> set[str]:
        return set(re.findall(r"^    (\w+): ", inspect.getdoc(kind) or "", re.M))

    fields = {field.name for field in dataclasses.fields(Train)}
    assert described(Train) == fields >= {"offset_MP", "prox"}
    mean = {field.name for field in dataclasses.fields(TrainMean)} - fields
    assert described(TrainMean) == mean == {"weight_M"}
    for answer in (Update, MeanUpdate):
        assert described(answer) == {*answer._fields}


def test_an_algorithm_needs_nothing_but_its_round() -> None:
    class Still(Algorithm):
        def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
            yield Train(state.w_P, ids)
            return state

    w_P = torch.ones(2)
    state = Still().init(w_P, 5)
    assert state.w_P is w_P and not state.server and not state.clients
    assert not Still().uses_server_data
    with pytest.raises(
        ValueError, match=r"\(algorithm\.py:\d+\) has no method 'round'"
    ):
        Algorithm()


@pytest.mark.parametrize(
    ("seed", "round", "client"), [(0, 0, 0), (2**63 - 1, 7, SERVER), (5, 2**31, 10**6)]
)
def test_a_stream_is_philox_keyed_by_seed_and_purpose_at_the_counter_client_and_round(
    seed: int, round: int, client: int
) -> None:
    key = np.array([seed, zlib.crc32(b"batches 1")], np.uint64)
    counter = np.array([0, (client + 1) % 2**64, round, 0], np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key, counter=counter))
    found = Key(seed, round)("batches 1", client)
    torchs = Key(seed, round).torch("batches 1", client).initial_seed()
    assert torchs == np.random.Generator(
        np.random.Philox(key=key, counter=counter)
    ).integers(2**63)
    assert (
        expected.integers(2**62, size=9).tolist()
        == found.integers(2**62, size=9).tolist()
    )
