"""Validation samples: who gives them, and that nobody trains on them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raysafl import (
    SAFARI,
    ClassesPerClient,
    Dirichlet,
    Federation,
    Iid,
    IidServer,
    Run,
    Validation,
)
from raysafl.core.problem import Dataset, Samples, Split
from raysafl.data import (
    ByUser,
    DealtClasses,
    FromClients,
    Overlapping,
    Partition,
    ServerData,
    Shards,
    StratifiedServer,
    Synthetic,
)

SAMPLES = 240
CLIENTS = 6


def labelled(samples: int = SAMPLES, outside: int = 0) -> Dataset:
    """Samples of four classes by eight users, each with its own number as input."""
    number = np.arange(samples)
    x = number[:, None].astype(np.float32)
    train = Samples(x, number % 4, users=number % 8)
    test = Samples(-1 - x, number % 4)
    return Dataset("numbers", train, test, num_classes=4, outside=outside)


def federation(validation: Validation, **more: Any) -> Federation:
    return Federation(clients=CLIENTS, validation=validation, **more)


def sets_of(split: Split) -> tuple[set[int], set[int], set[int]]:
    """The samples of all clients, of the server, and of nobody."""
    clients = set(split.clients.concatenated().tolist())
    return clients, set(split.server.tolist()), set(split.validation.tolist())


PARTITIONS: list[Partition] = [
    Iid(),
    ClassesPerClient(p=2),
    DealtClasses(p=2),
    Shards(p=2),
    Dirichlet(alpha=0.5),
    ByUser(),
    Overlapping(samples=20),
]
SERVERS: list[ServerData | None] = [
    None,
    IidServer(n0=40),
    StratifiedServer(n0=40),
    FromClients(c=3, per_client=5),
    FromClients(c=2, per_client=4, copies=False),
]


# A share of at least one sample of eight, which is what two clients give.
SHARES = st.just(0.0) | st.floats(0.13, 0.3)


@settings(max_examples=60)
@given(
    partition=st.sampled_from(PARTITIONS),
    server=st.sampled_from(SERVERS),
    shares=st.tuples(SHARES, SHARES).filter(any),
    outside=st.sampled_from([0, 30]),
    shared=st.booleans(),
    seed=st.integers(0, 100),
)
def test_nobody_trains_on_a_validation_sample(
    partition: Partition,
    server: ServerData | None,
    shares: tuple[float, float],
    outside: int,
    shared: bool,
    seed: int,
) -> None:
    # Of clients that overlap the server gets copies alone.
    assume(partition != PARTITIONS[-1] or server != SERVERS[-1])
    on_server, on_clients = shares
    if server is None:
        outside = 0
    dataset = labelled(SAMPLES + outside, outside)
    data = federation(
        Validation(server=on_server, clients=on_clients),
        partition=partition,
        server=server,
        share=0.5 if shared and server is not None else 0.0,
        seed=seed,
    )
    split = data.split(dataset, 0)
    clients, own, validation = sets_of(split)
    assert validation and len(validation) == len(split.validation)
    assert not validation & clients
    assert not validation & own
    assert validation <= set(range(len(dataset.train)))


def test_the_server_gives_its_share_of_its_own_data() -> None:
    split = federation(Validation(server=0.1), server=IidServer(n0=40)).split(
        labelled(), 0
    )
    plain = Federation(clients=CLIENTS, server=IidServer(n0=40)).split(labelled(), 0)
    assert len(split.validation) == 4
    assert set(split.validation) | set(split.server) == set(plain.server)
    # Clients hold what they would hold without.
    assert all(
        np.array_equal(a, b) for a, b in zip(split.clients, plain.clients, strict=True)
    )


def test_without_server_data_the_share_is_of_the_whole_training_set() -> None:
    split = federation(Validation(server=0.25)).split(labelled(), 0)
    assert len(split.validation) == 60
    assert split.clients.sizes.tolist() == [30] * CLIENTS
    other = federation(Validation(server=0.25), partition=ByUser()).split(labelled(), 0)
    assert np.array_equal(split.validation, other.validation)


def test_each_client_gives_its_share_and_a_small_client_gives_none() -> None:
    users = np.repeat([0, 1, 2], [10, 7, 1])
    train = Samples(np.zeros((18, 1), np.float32), np.zeros(18, np.int64), users=users)
    dataset = Dataset("users", train, train, num_classes=1)
    data = Federation(clients=3, partition=ByUser(), validation=Validation(clients=0.3))
    split = data.split(dataset, 0)
    assert split.clients.sizes.tolist() == [7, 5, 1]
    assert np.bincount(users[split.validation]).tolist() == [3, 2]


def test_clients_do_not_train_on_copies_that_the_server_holds_back() -> None:
    server = FromClients(c=CLIENTS, per_client=10)
    split = federation(Validation(server=0.5), server=server).split(labelled(), 0)
    assert len(split.validation) == len(split.server) == 30
    assert split.clients.sizes.sum() == SAMPLES - 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation": Validation(server=0.001)}, "of the training set, which is 240"),
        (
            {"validation": Validation(server=0.01), "server": IidServer(n0=40)},
            "of the server's data, which is 40 samples, is less than one sample",
        ),
        ({"validation": Validation(clients=0.01)}, "the largest holds 40"),
        (
            {
                "validation": Validation(clients=0.5),
                "partition": Overlapping(samples=2),
                "clients": 200,
            },
            r"leaves client \d+ nothing to train on",
        ),
    ],
)
def test_a_share_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Federation(**{"clients": CLIENTS, **change}).split(labelled(), 0)


def test_an_algorithm_that_trains_on_server_data_still_needs_some(tiny: Run) -> None:
    data = Federation(dataset=Synthetic(), validation=Validation(server=0.1))
    with pytest.raises(ValueError, match="SAFARI trains on server data"):
        tiny.replace(data=data, algorithm=SAFARI(client_prob=0.5))
