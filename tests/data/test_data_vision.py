"""torchvision's image sets, on small files in their published layouts that the tests write."""

import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torchvision.datasets as tv
from helpers.refused import refused
from helpers.small_data import Pixels, md5, trust, write_idx
from PIL import Image

from raysafl.data import (
    EMNIST_LABELS,
    Cifar10,
    Cinic10,
    Dataset,
    Emnist,
    FashionMnist,
    Source,
    Stl10,
    Svhn,
)

IDX = [
    f"{part}-{kind}-ubyte"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]
EMNIST_FILES = [f"emnist-balanced-{name.replace('t10k', 'test')}" for name in IDX]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty data root, and download addresses that refuse the connection at once."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    # While it is bound, no other process listens on this port.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        monkeypatch.setattr(tv.FashionMNIST, "mirrors", [nowhere])
        for kind in (tv.EMNIST, tv.CIFAR10, tv.CIFAR100, tv.STL10):
            monkeypatch.setattr(kind, "url", nowhere + "data.tar.gz")
        trust_svhn(monkeypatch, nowhere)
        yield tmp_path.resolve()


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def check(dataset: Dataset, x: Pixels, y: Any, tests: int) -> None:
    """The first images are for training, the last `tests` are the test set."""
    assert dataset.train.x.dtype == np.uint8 and dataset.train.y.dtype == np.int64
    assert np.array_equal(np.concatenate([dataset.train.x, dataset.test.x]), x)
    assert np.concatenate([dataset.train.y, dataset.test.y]).tolist() == list(y)
    assert len(dataset.test) == tests
    assert (dataset.train.scale, dataset.test.scale, dataset.train.shift) == (
        1 / 255,
        1 / 255,
        0,
    )
    assert dataset.train.x.flags.c_contiguous
    assert len(dataset.names) == dataset.num_classes


def test_fashion_mnist_reads_idx_files(root: Path) -> None:
    x, y = noise(10, 28, 28), np.arange(10, dtype=np.uint8)
    contents = [x[:7], y[:7], x[7:], y[7:]]
    for name, values in zip(IDX, contents, strict=True):
        write_idx(root / "FashionMNIST" / "raw" / name, values)
    dataset = FashionMnist().load()
    check(dataset, x[:, None], range(10), 3)
    assert dataset.num_classes == 10 and dataset.names[9] == "Ankle boot"


def write_emnist(root: Path) -> Pixels:
    x, y = noise(94, 28, 28), np.tile(np.arange(47, dtype=np.uint8), 2)
    stored = x.transpose(0, 2, 1)  # as NIST's files have it
    contents = [stored[:47], y[:47], stored[47:], y[47:]]
    for name, values in zip(EMNIST_FILES, contents, strict=True):
        write_idx(root / "EMNIST" / "raw" / name, np.ascontiguousarray(values))
    return x[:, None]


def test_emnist_is_upright_and_without_its_last_two_classes(root: Path) -> None:
    x = write_emnist(root)
    dataset = Emnist().load()
    kept = np.tile(np.arange(47) < 45, 2)
    check(dataset, x[kept], [*range(45)] * 2, 45)
    assert dataset.num_classes == 45 and "".join(dataset.names) == EMNIST_LABELS[:45]
    assert "".join(tv.EMNIST.classes_split_dict["balanced"]) == EMNIST_LABELS


def test_emnist_drops_what_it_is_told_and_renumbers(root: Path) -> None:
    x = write_emnist(root)
    dataset = Emnist(drop=[46, 0]).load()
    assert dataset.num_classes == 45 and dataset.names[0] == "1"
    assert dataset.names[-1] == "r"
    assert np.array_equal(dataset.train.x, x[1:46])
    assert dataset.train.y.tolist() == [*range(45)]
    assert Emnist(drop=[]).load().num_classes == 47
    assert Emnist(drop=[46, 0]) == Emnist(drop=[0, 46])


def write_cifar(root: Path) -> tuple[Pixels, list[int]]:
    """The Python version of CIFAR-10: pickles with rows of red, green, blue planes."""
    x, y = noise(12, 3, 32, 32), [*range(10), 3, 4]
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for i, name in enumerate([f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]):
        rows = slice(2 * i, 2 * i + 2)
        batch = {"data": x[rows].reshape(2, -1), "labels": y[rows]}
        (folder / name).write_bytes(pickle.dumps(batch))
    names = ["airplane", "automobile", *"bcdefghi"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names[:10]}))
    return x, y


def test_cifar10_reads_the_pickled_batches(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = write_cifar(root)
    folder = root / "cifar-10-batches-py"
    trust(monkeypatch, tv.CIFAR10, folder)
    meta = {**tv.CIFAR10.meta, "md5": md5(folder / "batches.meta")}
    monkeypatch.setattr(tv.CIFAR10, "meta", meta)
    dataset = Cifar10().load()
    check(dataset, x, y, 2)
    assert dataset.num_classes == 10 and dataset.names[:2] == ("airplane", "automobile")


def trust_svhn(
    monkeypatch: pytest.MonkeyPatch, address: str, folder: Path | None = None
) -> None:
    listed = {
        split: [address + name, name, md5(folder / name) if folder else "0" * 32]
        for split, (_, name, _) in tv.SVHN.split_list.items()
        if split != "extra"
    }
    monkeypatch.setattr(tv.SVHN, "split_list", listed)


def test_svhn_reads_matlabs_files_in_which_zero_is_ten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = noise(6, 3, 32, 32), [10, 1, 9, 10, 2, 3]
    (root / "SVHN").mkdir()
    for split, rows in (("train", slice(4)), ("test", slice(4, 6))):
        stored = {"X": x[rows].transpose(2, 3, 1, 0), "y": np.array([y[rows]]).T}
        scipy.io.savemat(root / "SVHN" / f"{split}_32x32.mat", stored)
    trust_svhn(monkeypatch, "nowhere", root / "SVHN")
    dataset = Svhn().load()
    check(dataset, x, [0, 1, 9, 0, 2, 3], 2)
    assert dataset.names == tuple("0123456789")


def test_cinic10_reads_folders_of_classes(root: Path) -> None:
    x = noise(5, 32, 32, 3)
    files = ["train/airplane/b", "train/airplane/c", "train/truck/a"]
    files += ["test/airplane/a", "test/truck/a"]
    for name, image in zip(files, x, strict=True):
        file = root / "CINIC-10" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    dataset = Cinic10().load()
    check(dataset, x.transpose(0, 3, 1, 2), [0, 0, 1, 0, 1], 2)
    assert dataset.names == ("airplane", "truck")
    airplane = root / "CINIC-10" / "test" / "airplane" / "a.png"
    Image.fromarray(x[0, :9]).save(airplane)
    with pytest.raises(ValueError, match="must have the same shape"):
        Cinic10().load()
    airplane.unlink()
    with pytest.raises(ValueError, match=r"airplane\..* unpack CINIC-10"):
        Cinic10().load()
    airplane.parent.rmdir()
    with pytest.raises(ValueError, match="train and test differ in their classes"):
        Cinic10().load()


def test_stl10_reads_column_major_images_and_labels_from_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = noise(5, 3, 96, 96), [0, 9, 3, 7, 1]
    folder = root / "stl10_binary"
    folder.mkdir()
    stored = np.ascontiguousarray(x.transpose(0, 1, 3, 2))  # columns first
    for part, rows in (("train", slice(3)), ("test", slice(3, 5))):
        (folder / f"{part}_X.bin").write_bytes(stored[rows].tobytes())
        (folder / f"{part}_y.bin").write_bytes(bytes(label + 1 for label in y[rows]))
    (folder / "unlabeled_X.bin").write_bytes(b"")
    trust(monkeypatch, tv.STL10, folder)
    dataset = Stl10().load()
    check(dataset, x, y, 2)
    assert dataset.num_classes == 10
    assert (dataset.names[2], dataset.names[7]) == ("car", "monkey")


@pytest.mark.parametrize(
    ("source", "name", "folder"),
    [
        (FashionMnist(), "Fashion-MNIST", "FashionMNIST/raw"),
        (Emnist(), "EMNIST", "EMNIST/raw"),
        (Cifar10(), "CIFAR-10", "cifar-10-batches-py"),
        (Svhn(), "SVHN", "SVHN"),
        (Stl10(), "STL-10", "stl10_binary"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_is_named_with_its_folder(
    source: Source, name: str, folder: str, root: Path
) -> None:
    text = refused(source.load)
    assert text.startswith(
        f"{name} is not whole in {root / folder} and cannot be downloaded"
    )
    assert text.endswith(f"point RAYSAFL_DATA at the folder that holds {folder}")


@pytest.mark.parametrize("size", [0, 100])
def test_damaged_files_are_named_with_their_folder(root: Path, size: int) -> None:
    raw = root / "FashionMNIST" / "raw"
    for name in IDX:
        write_idx(raw / name, noise(7, 28, 28) if "images" in name else noise(7))
    (raw / IDX[0]).write_bytes((raw / IDX[0]).read_bytes()[:size])
    with pytest.raises(ValueError, match=r"(?s)FashionMNIST/raw .*delete damaged ones"):
        FashionMnist().load()


def test_the_emnist_labels_are_those_of_the_real_letters(real_data: Path) -> None:
    """An upright I is tall, a label shifted by one would make it H or J."""
    from raysafl.data import ParquetImages

    if not (real_data / "emnist47").is_dir():
        pytest.skip("the EMNIST subset (RAYSAFL_DATA/emnist47) is not here")
    train = ParquetImages(path="emnist47").load().train
    ink = train.x[:, 0] > 100
    width = ink.any(axis=1).sum(axis=1)
    mean = [width[train.y == c].mean() for c in range(47)]
    narrow = {EMNIST_LABELS[c] for c in np.argsort(mean)[:3]}
    assert narrow == {"1", "I", "L"}  # L holds l as well
    assert Image.fromarray(train.x[0, 0]).size == (28, 28)
