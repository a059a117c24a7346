"""Datasets from real and from written files; partitions and server data by counting."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.refused import refused
from helpers.small_data import png
from hypothesis import given
from hypothesis import strategies as st

from raysafl import ClassesPerClient, Digits, Federation, Iid, IidServer, Validation
from raysafl.algorithms import Key
from raysafl.data import (
    FromClients,
    Mnist,
    ParquetImages,
    StratifiedServer,
    Subset,
    Synthetic,
)
from raysafl.data.partitions import SamplesToSpread

DIGITS = Digits().load()


# --- datasets


# How many of UCI's test images show each digit, and the first of them, row by row.
OF_EACH_DIGIT = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
FIRST = """
0 0 5 13 9 1 0 0    0 0 13 15 10 15 5 0   0 3 15 2 0 11 8 0   0 4 12 0 0 8 8 0
0 5 8 0 0 9 8 0     0 4 11 0 1 12 7 0     0 2 14 5 10 12 0 0  0 0 6 13 10 0 0 0
"""


def test_digits_are_ucis_split_four_to_one() -> None:
    train, test = DIGITS.train, DIGITS.test
    assert (DIGITS.name, DIGITS.num_classes) == ("digits", 10)
    assert train.x.shape == (1437, 1, 8, 8) and test.x.shape == (360, 1, 8, 8)
    assert train.x.dtype == test.x.dtype == np.uint8 and train.y.dtype == np.int64
    assert train.x.max() * train.scale + train.shift == 1.0 and train.x.min() == 0
    labels = np.concatenate([train.y, test.y])
    assert np.bincount(labels).tolist() == OF_EACH_DIGIT
    images = np.concatenate([train.x, test.x]).reshape(-1, 64).tolist()
    assert labels[images.index([int(pixel) for pixel in FIRST.split()])] == 0


def test_digits_are_scikit_learns_to_the_bit_and_in_its_order() -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    split = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    train, test = DIGITS.train, DIGITS.test
    for mine, theirs in zip((train.x, test.x, train.y, test.y), split, strict=True):
        assert np.array_equal(mine.reshape(theirs.shape), theirs)


def test_mnist_is_the_published_data(real_data: Path) -> None:
    if not (real_data / "MNIST").is_dir():
        pytest.skip("the MNIST files (RAYSAFL_DATA/MNIST) are not here")
    dataset = Mnist().load()
    assert dataset.train.x.shape == (60_000, 1, 28, 28) and len(dataset.test) == 10_000
    published = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(dataset.train.y).tolist() == published


def write_parquet(file: Path, images: list[bytes], labels: list[int]) -> None:
    """The Hugging Face layout of an image dataset."""
    rows = [{"bytes": content, "path": None} for content in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {"image": pa.array(rows, kind), "label": pa.array(labels, pa.int64())}
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def write_folder(folder: Path, images: list[bytes], labels: list[int]) -> ParquetImages:
    for name in ("train", "test"):
        write_parquet(folder / f"{name}.parquet", images, labels)
    return ParquetImages(path=str(folder))


@pytest.mark.parametrize("tail", [(), (3,)], ids=["gray", "rgb"])
def test_parquet_images_come_back_pixel_by_pixel(
    tail: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, labels = noise(9, 5, 4, *tail), [0, 1, 2, 0, 1, 2, 3, 0, 1]
    write_parquet(
        tmp_path / "own" / "train.parquet", [png(p) for p in pixels[:6]], labels[:6]
    )
    write_parquet(
        tmp_path / "own" / "test.parquet", [png(p) for p in pixels[6:]], labels[6:]
    )
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    dataset = ParquetImages(path="own").load()
    assert (dataset.name, dataset.num_classes) == ("own", 4)
    expected = pixels[:, None] if not tail else pixels.transpose(0, 3, 1, 2)
    assert np.array_equal(dataset.train.x, expected[:6])
    assert np.array_equal(dataset.test.x, expected[6:])
    assert dataset.train.y.tolist() == labels[:6]
    assert dataset.test.y.tolist() == labels[6:]
    assert dataset.train.x.dtype == np.uint8 and dataset.train.y.dtype == np.int64
    assert (
        ParquetImages(path=str(tmp_path / "own")).load().train.y.tolist() == labels[:6]
    )


@pytest.mark.parametrize("content", [b"", b"label,image"], ids=["empty", "text"])
def test_a_file_that_is_not_parquet_is_named(content: bytes, tmp_path: Path) -> None:
    source = write_folder(tmp_path, [png(noise(4, 4))], [0])
    (tmp_path / "train.parquet").write_bytes(content)
    assert refused(source.load).startswith(
        f"{tmp_path / 'train.parquet'} is not a Parquet file"
    )


# --- partitions


@st.composite
def class_problems(
    draw: st.DrawFn,
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int, int, int]:
    """Labels, how many classes, how many clients, and p."""
    sizes = draw(st.lists(st.integers(15, 60), min_size=1, max_size=7))
    classes = len(sizes)
    labels = np.repeat(np.arange(classes), sizes)
    np.random.default_rng(draw(st.integers(0, 99))).shuffle(labels)
    return labels, classes, draw(st.integers(1, 15)), draw(st.integers(1, classes))


def spread(
    partition: Iid | ClassesPerClient,
    labels: Any,
    classes: int,
    clients: int,
    seed: int,
) -> list[list[int]]:
    rng = Key(seed)("partition")
    samples = SamplesToSpread(labels, classes)
    return [part.tolist() for part in partition.spread(samples, clients, rng)]


@given(class_problems(), st.integers(0, 10**6))
def test_clients_hold_p_classes_alike_disjoint_and_evenly_covered(
    problem: Any, seed: int
) -> None:
    labels, classes, clients, p = problem
    parts = spread(ClassesPerClient(p=p), labels, classes, clients, seed)
    used = [i for part in parts for i in part]
    assert len(parts) == clients and len(used) == len(set(used))
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    held = counts > 0
    assert (held.sum(axis=1) == p).all()
    holders = held.sum(axis=0)
    assert holders.max() - holders.min() <= 1
    sizes = np.bincount(labels, minlength=classes)
    share = min(n // h for n, h in zip(sizes, holders, strict=True) if h)
    assert (counts[held] == share).all() and share > 0


# --- the server's data


@given(
    n0=st.integers(1, 1000),
    seed=st.integers(0, 10**6),
    stratified=st.booleans(),
    p=st.none() | st.integers(1, 10),
)
def test_server_data_is_n0_samples_that_no_client_holds(
    n0: int, seed: int, stratified: bool, p: int | None
) -> None:
    federation = Federation(
        partition=Iid() if p is None else ClassesPerClient(p=p),
        server=StratifiedServer(n0=n0) if stratified else IidServer(n0=n0),
        seed=seed,
    )
    split = federation.split(DIGITS, 0)
    assert len(split.server) == n0 and split.server.dtype == np.int64
    together = np.concatenate([split.server, *split.clients])
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < len(DIGITS.train)
    if p is None:
        assert len(together) == len(DIGITS.train)
    else:
        labels = DIGITS.train.y
        assert {len(np.unique(labels[part])) for part in split.clients} == {p}
    if stratified:
        counts = np.bincount(DIGITS.train.y[split.server], minlength=10)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    "server", [IidServer(n0=1437), StratifiedServer(n0=5000)], ids=repr
)
def test_server_data_that_leaves_nothing_is_refused(
    server: IidServer | StratifiedServer,
) -> None:
    assert refused(Federation(server=server).split, DIGITS, 0) == (
        f"server data of n0 = {server.n0} samples leaves no client data: the training set has "
        "1437; choose n0 below that"
    )


# --- federations


def ids(federation: Federation, replicate: int) -> str:
    split = federation.split(DIGITS, replicate)
    return str([split.server.tolist(), *(part.tolist() for part in split.clients)])


@pytest.mark.parametrize("partition", [Iid(), ClassesPerClient(p=2)], ids=repr)
def test_replicates_share_a_partition_unless_the_seed_is_none(
    partition: Iid | ClassesPerClient,
) -> None:
    server = FromClients(c=3, per_client=9, copies=False)
    held = Validation(clients=0.1)
    shared = Federation(partition=partition, server=server, validation=held)
    assert len({ids(shared, r) for r in range(5)}) == 1
    own = shared.replace(seed=None)
    assert len({ids(own, r) for r in range(5)}) == 5
    assert ids(own, 3) == ids(own, 3) == ids(shared.replace(seed=3), 0)


def test_replicates_take_so_many_partitions_in_turn() -> None:
    shared = Federation(seed=7, server=IidServer(n0=50))
    three = shared.replace(partition_seeds=3)
    assert [three.split_seed(r) for r in range(7)] == [7, 8, 9, 7, 8, 9, 7]
    for r in range(6):
        assert ids(three, r) == ids(shared.replace(seed=7 + r % 3), 0)


def test_the_partition_does_not_change_who_the_server_draws() -> None:
    server = StratifiedServer(n0=40)
    a, b = (
        Federation(partition=partition, server=server).split(DIGITS, 0).server
        for partition in (Iid(), ClassesPerClient(p=3))
    )
    assert np.array_equal(a, b)


def test_the_source_key_follows_the_dataset_alone() -> None:
    assert Federation().source_key == Federation(clients=3, seed=4).source_key
    assert Federation(dataset=Mnist()).source_key != Federation().source_key
    near, far = (ParquetImages(path="x", high=high) for high in (1.0, 2.0))
    assert Federation(dataset=near).source_key != Federation(dataset=far).source_key
    assert np.array_equal(Federation().load().train.y, DIGITS.train.y)


def test_a_subset_is_a_draw_of_both_parts() -> None:
    whole, some = Digits().load(), Subset(dataset=Digits(), train=100, test=50).load()
    for part, pool, size in (
        (some.train, whole.train, 100),
        (some.test, whole.test, 50),
    ):
        images, all_images = (
            {(image.tobytes(), label) for image, label in zip(s.x, s.y, strict=True)}
            for s in (part, pool)
        )
        assert len(images) == len(part) == size and images <= all_images
    assert some.num_classes == 10
    assert some.names == whole.names and some.train.scale == whole.train.scale
    assert 5 <= np.bincount(some.train.y).min()
    assert np.bincount(some.train.y).max() <= 20


def test_a_subset_is_a_function_of_its_seed_and_never_larger() -> None:
    first, again, other = (
        Subset(dataset=Digits(), train=100, seed=seed).load().train.y
        for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    everything = Subset(dataset=Digits(), train=10**6).load()
    assert np.array_equal(everything.train.x, Digits().load().train.x)


def test_the_first_classes_are_kept_and_users_stay() -> None:
    few = Subset(dataset=Digits(), classes=3).load()
    assert set(few.train.y) == set(few.test.y) == {0, 1, 2}
    assert few.names == ("0", "1", "2")
    with pytest.raises(ValueError, match=r"classes=11 needs .* and 'digits' has 10"):
        Subset(dataset=Digits(), classes=11).load()
    whole = Synthetic().load()
    users = Subset(dataset=Synthetic(), train=40).load().train.users
    assert whole.train.users is not None and users is not None
    assert len(users) == 40 and set(users) <= set(whole.train.users)
