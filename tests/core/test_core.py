"""Random streams, and the small vocabulary beside them: text, whose code, files of tensors."""

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
from raysafl.algorithms import SERVER, Key, MeanUpdate, Round, State, Update
from raysafl.core import tensor_file
from raysafl.core.text import closest, duration, format_bytes
from raysafl.core.users_code import is_users_file


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
    with pytest.raises(ValueError, match=r"give epochs=... or steps=..., exactly one"):
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
    with pytest.raises(ValueError, match=r"algorithm\.py:\d+\) has no method 'round'"):
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


@pytest.mark.parametrize(
    ("write", "number", "words"),
    [
        (format_bytes, 0, "0 B"),
        (format_bytes, 999, "999 B"),
        (format_bytes, 999.7, "1 kB"),
        (format_bytes, 3_400_000, "3.4 MB"),
        (format_bytes, 1.5e9, "1.5 GB"),
        (format_bytes, 2e15, "2e+03 TB"),
        (duration, 41.26, "41.3 s"),
        (duration, 59.97, "1 min 0 s"),
        (duration, 12000, "3 h 20 min"),
    ],
)
def test_numbers_read_well(
    write: Callable[[float], str], number: float, words: str
) -> None:
    assert write(number) == words


def test_only_a_near_name_is_suggested() -> None:
    known = ["eval_clients", "clients", "half_life"]
    assert closest("halflife", known) == "half_life"
    assert closest("halflife", known[:2]) == ""
    assert closest("rl", ["lr", "local"]) == "lr"
    assert closest("LR", ["rl", "lr"]) == "lr"
    assert closest("21", ["12", "30"]) == ""
    assert closest("clients_per_round", known[:2]) == "clients"


def test_beside_what_is_installed_into_a_folder_of_any_name_a_users_files_are_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "taken-1.0.dist-info"
    records.mkdir()
    (records / "RECORD").write_text(
        "taken/__init__.py,sha256=abc,12\nalone.py,,\n../../bin/taken,,\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    files = ("taken/deep/in.py", "alone.py", "mine.py", "own/taken.py", "own/alone.py")
    theirs = [is_users_file(str(tmp_path / file)) for file in files]
    assert theirs == [False, False, True, True, True]


def test_tensors_that_share_memory_come_back_each_as_it_was() -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    given = {
        "whole": matrix,
        "again": matrix,
        "row": matrix[1],
        "transposed": matrix.T,
        "every second": matrix.reshape(-1)[::2],
        "empty": torch.empty(0),
        "also empty": torch.empty(0, 4),
        "number": torch.tensor(3),
    }
    values, found = tensor_file.from_bytes(tensor_file.to_bytes({"round": 3}, given))
    assert values == {"round": 3} and found.keys() == given.keys()
    for name, tensor in given.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_only_tensors_that_share_memory_are_copied() -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    alone = torch.ones(5)
    given = {"row": matrix[1], "other row": matrix[2], "alone": alone}
    found = tensor_file._alone(given)
    assert found["alone"].data_ptr() == alone.data_ptr()
    places = {own.untyped_storage().data_ptr() for own in found.values()}
    assert len(places) == 3 and matrix.data_ptr() not in places
