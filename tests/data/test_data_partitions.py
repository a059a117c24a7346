"""Dirichlet and natural partitions: by counting, and by moments of the distribution."""

import itertools
from typing import Any

import numpy as np
import pytest
from helpers.refused import refused
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raysafl import ClassesPerClient, Dirichlet, Federation, IidServer
from raysafl.algorithms import Key
from raysafl.data import (
    ByUser,
    Dataset,
    DealtClasses,
    IndependentClasses,
    Samples,
    Shards,
    Synthetic,
)
from raysafl.data.partitions import SamplesToSpread

Ints = np.ndarray[Any, np.dtype[np.int64]]
BALANCED = st.booleans()


@st.composite
def problems(draw: st.DrawFn) -> tuple[Ints, int, int]:
    """Labels in any order, how many classes (some may be empty), how many clients."""
    sizes = draw(st.lists(st.integers(0, 80), min_size=1, max_size=7))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    assume(len(labels) > 0)
    np.random.default_rng(draw(st.integers(0, 99))).shuffle(labels)
    return labels, len(sizes), draw(st.integers(1, min(12, len(labels))))


def spread(
    partition: Any, labels: Ints, classes: int, clients: int, seed: int = 0
) -> list[Ints]:
    parts: list[Ints] = partition.spread(
        SamplesToSpread(labels, classes), clients, Key(seed)("partition")
    )
    return parts


def counts(labels: Ints, parts: list[Ints], classes: int) -> Ints:
    return np.array([np.bincount(labels[part], minlength=classes) for part in parts])


@given(problems(), st.floats(0.001, 1000), st.integers(0, 10**6))
def test_balanced_sizes_are_equal_and_samples_used_once(
    problem: Any, alpha: float, seed: int
) -> None:
    labels, classes, clients = problem
    parts = spread(Dirichlet(alpha=alpha), labels, classes, clients, seed)
    assert {len(part) for part in parts} == {len(labels) // clients}
    assert len(parts) == clients
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0 and used.max() < len(labels)
    assert all((np.diff(part) > 0).all() for part in parts)


def test_clients_with_room_are_equally_likely_to_take_the_next_sample() -> None:
    """Where both of two clients want one class alone, they take it up half by half.

    Each of its 100 samples goes to either client with probability 1/2, so that the first
    one has 50 with the variance 25. Were clients drawn in proportion to the room that
    they have left, it would be 12.6.
    """
    labels = np.repeat([0, 1], 100)
    partition = Dirichlet(alpha=0.001)
    shares = []
    for seed in range(600):
        parts = spread(partition, labels, 2, 2, seed)
        first = counts(labels, parts, 2)[0]
        # Clients that want different classes have nearly all of them.
        if first.min() > 20:
            shares.append(first[0])
    assert len(shares) > 200
    assert np.mean(shares) == pytest.approx(50, abs=2)
    assert 19 < np.var(shares) < 31


@settings(deadline=None)
@given(problems(), st.floats(1, 1000), st.integers(0, 10**6))
def test_unbalanced_parts_are_all_samples_and_none_is_empty(
    problem: Any, alpha: float, seed: int
) -> None:
    labels, classes, clients = problem
    assume(len(labels) >= 20 * clients)
    parts = spread(
        Dirichlet(alpha=alpha, balanced=False), labels, classes, clients, seed
    )
    assert len(parts) == clients and min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


def shares(partition: Dirichlet, draws: int, clients: int = 2, each: int = 1000) -> Any:
    """[draws * clients, classes]: label proportions, of 4 classes of `each` samples."""
    labels = np.repeat(np.arange(4), each)
    rows = [
        counts(labels, spread(partition, labels, 4, clients, s), 4)
        for s in range(draws)
    ]
    stacked = np.concatenate(rows)
    return stacked / stacked.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("balanced", [True, False])
def test_a_smaller_alpha_concentrates_labels(balanced: bool) -> None:
    """Sum of squared proportions: 1 for one class, 1/4 for four equal ones."""
    alphas = (0.05, 0.3, 1, 10, 1000)
    squares = [
        (shares(Dirichlet(alpha=a, balanced=balanced), 60, 5, 100) ** 2)
        .sum(axis=1)
        .mean()
        for a in alphas
    ]
    assert all(a > b + 0.005 for a, b in itertools.pairwise(squares))
    assert squares[0] > 0.5 and squares[-1] < 0.26


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5])
def test_two_samples_of_a_client_are_alike_as_often_as_the_dirichlet_says(
    alpha: float,
) -> None:
    """P(two draws from one Dirichlet(alpha) over C classes are alike) = (alpha+1) / (C alpha+1).

    5,000 clients of two samples, so that classes run out only for the last few.
    """
    labels = np.repeat(np.arange(4), 2500)
    alike = [
        np.mean(
            [
                labels[a] == labels[b]
                for a, b in spread(Dirichlet(alpha=alpha), labels, 4, 5000, s)
            ]
        )
        for s in range(5)
    ]
    assert abs(np.mean(alike) - (alpha + 1) / (4 * alpha + 1)) < 0.03


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"alpha": 1e-9}, "alpha: Input should be greater than or equal to 0.001"),
        ({"alpha": 1, "min_samples": 0}, "min_samples: Input should be greater than 0"),
    ],
)
def test_arguments_out_of_range_are_refused(fields: Any, told: str) -> None:
    assert told in refused(Dirichlet, **fields)


# --- natural


def made(users: list[int] | None) -> Dataset:
    n = 12 if users is None else len(users)
    own = None if users is None else np.array(users)
    part = Samples(np.zeros((n, 2), np.float32), np.arange(n) % 3, users=own)
    return Dataset("made", part, part, 3)


def test_natural_gives_each_client_one_users_samples() -> None:
    data = made([2, 0, 1, 2, 0, 2, 7])
    parts = Federation(clients=4, partition=ByUser()).split(data, 0).clients
    assert [part.tolist() for part in parts] == [[1, 4], [2], [0, 3, 5], [6]]


def test_fewer_clients_are_the_largest_users() -> None:
    data = made([2, 0, 1, 2, 0, 2, 7])
    parts = Federation(clients=2, partition=ByUser()).split(data, 0).clients
    assert [part.tolist() for part in parts] == [[1, 4], [0, 3, 5]]


def test_natural_leaves_the_server_its_samples() -> None:
    data = Synthetic(users=5).load()
    users = data.train.users
    assert users is not None
    split = Federation(clients=5, partition=ByUser(), server=IidServer(n0=30)).split(
        data, 0
    )
    assert all((users[part] == i).all() for i, part in enumerate(split.clients))
    together = np.concatenate([split.server, *split.clients])
    assert sorted(together.tolist()) == list(range(len(data.train)))


def test_natural_needs_users_and_enough_of_them() -> None:
    with pytest.raises(ValueError, match="does not say who made its samples"):
        Federation(clients=2, partition=ByUser()).split(made(None), 0)
    with pytest.raises(ValueError, match=r"but the dataset has 3 users .*clients=3"):
        Federation(clients=4, partition=ByUser()).split(made([0, 0, 1, 2]), 0)


@given(problems(), st.integers(1, 4), st.integers(0, 10**6))
def test_shards_hold_one_class_each_and_clients_equally_many(
    problem: Any, p: int, seed: int
) -> None:
    labels, classes, clients = problem
    try:
        parts = spread(Shards(p=p), labels, classes, clients, seed)
    except ValueError as error:
        assert "too many" in str(error)
        return
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert len({len(part) for part in parts}) == 1
    size = len(parts[0]) // p
    assert (counts(labels, parts, classes) % size == 0).all()  # whole shards


def test_both_shards_of_a_class_go_to_absent_clients_as_often_as_dealing_says() -> None:
    """20 shards, two a class, 8 of them with 4 absent clients: 10 * (8 * 7) / (20 * 19) lost."""
    labels = np.repeat(np.arange(10), 100)
    lost = [
        (
            counts(labels, spread(Shards(p=2), labels, 10, 10, seed)[:6], 10).sum(0)
            == 0
        ).sum()
        for seed in range(1500)
    ]
    assert np.mean(lost) == pytest.approx(10 * 56 / 380, abs=0.1)


def test_with_one_shard_each_ten_clients_hold_the_ten_classes() -> None:
    labels = np.repeat(np.arange(10), 30)
    held = counts(labels, spread(Shards(p=1), labels, 10, 10), 10)
    assert (held.sum(0) == 30).all() and (np.count_nonzero(held, axis=1) == 1).all()
    with pytest.raises(ValueError, match="10 clients with p = 40 shards each are too"):
        spread(Shards(p=40), labels, 10, 10)


def test_independent_clients_leave_classes_out_as_often_as_chance_says() -> None:
    """A class is nobody's with probability (1 - p/10)^10."""
    labels = np.repeat(np.arange(10), 100)
    for p in (1, 2):
        held = [
            counts(labels, spread(IndependentClasses(p=p), labels, 10, 10, seed), 10)
            > 0
            for seed in range(500)
        ]
        assert all((kinds.sum(axis=1) == p).all() for kinds in held)
        missing = np.mean([(~kinds.any(axis=0)).sum() for kinds in held])
        assert missing == pytest.approx(10 * (1 - p / 10) ** 10, abs=0.15)


@given(st.integers(1, 12), st.integers(1, 8), st.data())
def test_dealt_classes_are_different_ones_and_are_held_equally_often(
    clients: int, classes: int, data: st.DataObject
) -> None:
    p = data.draw(st.integers(1, classes))
    labels = np.repeat(np.arange(classes), 20)
    parts = spread(
        DealtClasses(p=p), labels, classes, clients, data.draw(st.integers(0, 999))
    )
    held = counts(labels, parts, classes)
    assert ((held > 0).sum(axis=1) == p).all()
    holders = (held > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    assert len(set(held[held > 0].tolist())) == 1


def chance_of_hands(left: tuple[int, ...], p: int) -> dict[tuple[int, ...], float]:
    """Return how likely each set of p classes is for the next client, all drawn alike.

    A set counts if the clients after it can be served: no class may have more parts
    left than there are clients.
    """
    after = sum(left) // p - 1
    able = []
    for hand in itertools.combinations([c for c in range(len(left)) if left[c]], p):
        rest = [n - (c in hand) for c, n in enumerate(left)]
        if max(rest) <= after:
            able.append(hand)
    return {hand: 1 / len(able) for hand in able}


def classes_of_the_last(left: tuple[int, ...], p: int, last: int) -> float:
    """Return how many classes only the last clients hold, on average, by enumeration."""
    whole = 2
    if sum(left) == p * last:
        return sum(n == whole for n in left)
    return sum(
        chance
        * classes_of_the_last(
            tuple(n - (c in hand) for c, n in enumerate(left)), p, last
        )
        for hand, chance in chance_of_hands(left, p).items()
    )


def test_the_last_clients_take_classes_away_as_often_as_dealing_in_turn_says() -> None:
    """Five clients, two of five classes each, so each class has two parts."""
    labels = np.repeat(np.arange(5), 40)
    lost = [
        (
            counts(labels, spread(DealtClasses(p=2), labels, 5, 5, seed)[:3], 5).sum(0)
            == 0
        ).sum()
        for seed in range(3000)
    ]
    exact = classes_of_the_last((2,) * 5, 2, last=2)
    assert np.mean(lost) == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize(
    ("partition", "by_id"),
    [
        (Shards(p=2), "as many"),
        (ClassesPerClient(p=2), "none"),
        (DealtClasses(p=2), "more"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_the_absent_with_the_last_ids_take_as_many_classes_along_as_random_ones_in_shards_alone(
    partition: Any, by_id: str
) -> None:
    """Ten clients with two of ten classes each; classes that nobody among six holds."""
    labels = np.repeat(np.arange(10), 20)
    lost = []
    for seed in range(200):
        held = counts(labels, spread(partition, labels, 10, 10, seed), 10) > 0
        drawn = Key(seed)("absent").permutation(10)
        lost.append([int((~held[ids].any(0)).sum()) for ids in (range(6), drawn[:6])])
    (last, random), error = np.mean(lost, 0), np.std(np.diff(lost)) / 200**0.5
    assert random > 1
    if by_id == "none":
        assert last == 0
    elif by_id == "as many":
        assert abs(last - random) < 4 * error
    else:
        assert last > random + 0.5
