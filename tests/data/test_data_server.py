"""Server data from clients and from another dataset; and data sharing."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysafl import ClassesPerClient, Digits, Federation, IidServer
from raysafl.data import (
    Dataset,
    FromClients,
    OtherDatasetServer,
    Overlapping,
    Partition,
    Samples,
    ServerData,
    Source,
    StratifiedServer,
    Synthetic,
)
from raysafl.data.partitions import SamplesToSpread

DIGITS = Digits().load()


class Colours(Source):
    """Images [channels, side, side] of one brightness per class: 20, 40, ..."""

    classes: int = 3
    side: int = 8
    channels: int = 3
    each: int = 30

    def load(self) -> Dataset:
        y = np.tile(np.arange(self.classes), self.each)
        x = np.zeros((len(y), self.channels, self.side, self.side), np.uint8)
        x += (20 * (y + 1)).astype(np.uint8)[:, None, None, None]
        x[:, :, 0, 0] = 255
        part = Samples(x, y, 1 / 255)
        return Dataset("colours", part, part, self.classes)


# --- from clients


@given(
    c=st.integers(1, 10),
    s=st.integers(1, 100),
    copies=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_c_clients_give_s_samples_each(c: int, s: int, copies: bool, seed: int) -> None:
    base = Federation(partition=ClassesPerClient(p=1), seed=seed)
    before = base.split(DIGITS, 0).clients
    server = FromClients(c=c, per_client=s, copies=copies)
    split = base.replace(server=server).split(DIGITS, 0)
    assert len(np.unique(split.server)) == len(split.server) == c * s
    gave = [np.intersect1d(held, split.server) for held in before]
    assert sorted(map(len, gave)) == [0] * (10 - c) + [s] * c
    for held, given_, now in zip(before, gave, split.clients, strict=True):
        assert np.array_equal(now, held if copies else np.setdiff1d(held, given_))


def test_a_client_may_give_all_it_has_only_as_copies() -> None:
    base = Federation(clients=100, partition=ClassesPerClient(p=1))
    held = len(base.split(DIGITS, 0).clients[0])
    server = FromClients(c=3, per_client=held)
    assert len(base.replace(server=server).split(DIGITS, 0).server) == 3 * held
    with pytest.raises(
        ValueError, match=rf"it holds {held} and must keep one \(copies=False\)"
    ):
        base.replace(server=server.replace(copies=False)).split(DIGITS, 0)
    with pytest.raises(
        ValueError, match=rf"cannot give per_client = {held + 1} samples: it holds"
    ):
        base.replace(server=server.replace(per_client=held + 1)).split(DIGITS, 0)


def test_of_clients_that_overlap_the_server_gets_copies_alone() -> None:
    server = FromClients(c=2, per_client=5)
    base = Federation(partition=Overlapping(samples=200), server=server)
    assert len(base.split(DIGITS, 0).server) == 10
    with pytest.raises(ValueError, match="two clients hold the same sample"):
        base.replace({"server.copies": False}).split(DIGITS, 0)


# --- from another dataset


def outside(federation: Federation) -> tuple[Dataset, Samples]:
    """What is loaded, and its samples from outside; clients must not hold them."""
    dataset = federation.load()
    own = len(dataset.train) - dataset.outside
    split = federation.split(dataset, 0)
    assert split.server.tolist() == list(range(own, len(dataset.train)))
    assert max(part.max() for part in split.clients) < own
    train = dataset.train
    return dataset, Samples(train.x[own:], train.y[own:], train.scale, train.shift)


def test_another_datasets_images_are_mapped_resized_and_the_servers_alone() -> None:
    other = OtherDatasetServer(
        dataset=Colours(classes=4, side=24), n0=9, classes=[2, None, 0, 1]
    )
    dataset, extra = outside(Federation(dataset=Colours(), clients=5, server=other))
    assert np.array_equal(dataset.train.x[:90], Colours().load().train.x)
    assert np.bincount(extra.y).tolist() == [3, 3, 3]
    assert extra.x.shape == (9, 3, 8, 8) and extra.x.dtype == np.uint8
    brightness = {0: 60, 1: 80, 2: 20}  # of the other dataset's classes 2, 3, 0
    for image, label in zip(extra.x, extra.y.tolist(), strict=True):
        assert (image[:, 4:, 4:] == brightness[label]).all()


def test_colours_become_gray_and_gray_becomes_colours() -> None:
    for mine, theirs in ((1, 3), (3, 1)):
        other = OtherDatasetServer(
            dataset=Colours(channels=theirs), n0=3, classes=[0, 1, 2]
        )
        _, extra = outside(Federation(dataset=Colours(channels=mine), server=other))
        assert extra.x.shape == (3, mine, 8, 8)
        assert extra.x[:, :, 4, 4].tolist() == [
            [20 * (y + 1)] * mine for y in extra.y.tolist()
        ]


def test_which_images_are_drawn_follows_the_seed_alone() -> None:
    servers = {
        seed: OtherDatasetServer(
            dataset=Digits(), n0=20, classes=[*range(10)], seed=seed
        )
        for seed in (0, 1)
    }
    first, again, second = (
        outside(Federation(dataset=Colours(classes=10, channels=1), server=servers[s]))[
            1
        ]
        for s in (0, 0, 1)
    )
    assert np.array_equal(first.x, again.x) and not np.array_equal(first.x, second.x)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (
            OtherDatasetServer(dataset=Digits(), n0=9, classes=[0, 1, 2]),
            "classes has 3 entries, but 'digits' has 10 classes: give each its class",
        ),
        (
            OtherDatasetServer(dataset=Colours(), n0=9, classes=[0, 1, 3]),
            r"classes names \[3\]; the classes of 'colours' are 0 to 2",
        ),
        (
            OtherDatasetServer(dataset=Colours(), n0=9, classes=[None] * 3),
            "classes names no class at all",
        ),
        (
            OtherDatasetServer(dataset=Colours(), n0=93, classes=[0, 1, 2]),
            "n0 = 93 needs 31 images of class 0 of 'colours', which has 30",
        ),
        (
            OtherDatasetServer(dataset=Synthetic(users=2), n0=9, classes=[0] * 10),
            "needs a dataset of images",
        ),
    ],
)
def test_a_map_that_does_not_fit_is_refused_when_the_data_is_read(
    server: ServerData, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        Federation(dataset=Colours(), server=server).load()


def test_the_source_key_knows_server_data_from_outside() -> None:
    plain = Federation(dataset=Colours())
    other = OtherDatasetServer(dataset=Colours(), n0=9, classes=[0, 1, 2])
    keys = {
        plain.replace(server=server).source_key
        for server in (other, other.replace(n0=6), None, IidServer(n0=3))
    }
    # samples drawn from the dataset change nothing of what is loaded
    assert len(keys) == 3
    assert plain.replace(server=other, clients=3).source_key in keys


# --- sharing


SERVERS = [
    IidServer(n0=40),
    StratifiedServer(n0=40),
    FromClients(c=4, per_client=10),
    OtherDatasetServer(dataset=Digits(), n0=40, classes=[*range(10)]),
]


@pytest.mark.parametrize("server", SERVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("share", [True, 0.25])
def test_every_client_gets_the_share_of_the_servers_data(
    server: ServerData, share: float
) -> None:
    alone = Federation(server=server, partition=ClassesPerClient(p=1))
    dataset = alone.load()
    before = alone.split(dataset, 0)
    split = alone.replace(share=share).split(dataset, 0)
    assert np.array_equal(before.server, split.server)
    extras = []
    for held, now in zip(before.clients, split.clients, strict=True):
        assert np.array_equal(now[: len(held)], held)
        extras.append(now[len(held) :])
        assert len(np.unique(extras[-1])) == len(extras[-1]) == round(40 * share)
        assert np.isin(extras[-1], split.server).all()
    assert len({tuple(extra) for extra in extras}) == (1 if share == 1 else 10)


# --- the user's own rules
# ------------------------------------------------------------------------------


class Given(Partition):
    """Spreads the samples as told."""

    rows: list[list[int]]

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        yield from map(np.array, self.rows)


class Drawn(ServerData):
    """The server holds the samples that it is told."""

    rows: list[int]

    def draw(
        self, labels: np.ndarray, num_classes: int, rng: np.random.Generator
    ) -> np.ndarray:
        return np.array(self.rows)


class Collected(Drawn):
    """The server gets copies of samples, and some clients are lost."""

    kept: int = 10

    def draw(
        self, labels: np.ndarray, num_classes: int, rng: np.random.Generator
    ) -> np.ndarray:
        return np.empty(0, np.int64)

    def collect(
        self, clients: Sequence[np.ndarray], rng: np.random.Generator
    ) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        return np.array(self.rows), clients[: self.kept]


def test_a_partition_may_yield_the_clients_one_by_one() -> None:
    data = Federation(clients=2, partition=Given(rows=[[4, 1], [7]]))
    held = data.split(DIGITS, 0).clients
    assert [part.tolist() for part in held] == [[4, 1], [7]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            Federation(clients=2, partition=Given(rows=[[1]])),
            r"Given.spread .* 1 clients",
        ),
        (Federation(clients=1, partition=Given(rows=[[1, -1]])), "from -1 to 1"),
        (Federation(clients=1, partition=Given(rows=[[9999]])), "from 9999 to 9999"),
        (Federation(server=Drawn(rows=[9999])), r"Drawn.draw .* from 9999"),
        (Federation(server=Drawn(rows=[-1])), "from -1"),
        (Federation(server=Collected(rows=[9999])), r"Collected.collect .* from 9999"),
        (Federation(server=Collected(rows=[1], kept=9)), "9 clients, but there are 10"),
    ],
)
def test_samples_that_do_not_exist_or_clients_too_few_are_refused(
    data: Federation, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        data.split(DIGITS, 0)
