"""Small files in the layouts of the real datasets, big enough for every cell of experiments/.

Images are plain: a shade per class. Accuracies on them mean nothing; that everything
runs does.
"""

import hashlib
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision.datasets as tv
from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
SPEAKERS = 139
# Half as long as the real ones: a quarter of the time, and no model asks for more.
SIDE = 16


def write_idx(path: Path, values: Pixels) -> None:
    """LeCun's IDX format: two zero bytes, type 8 (unsigned byte), number of axes, lengths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(head + values.tobytes())


def png(pixels: Pixels) -> bytes:
    """An image [height, width] or [height, width, channels] as the bytes of a PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_images(folder: Path, names: str, classes: int, train: int) -> None:
    """Training and test images [n, SIDE, SIDE] as IDX files; `names` has places for part, kind."""
    for part, count in (("train", train), ("test", 4 * classes)):
        y = (np.arange(count) % classes).astype(np.uint8)
        x = np.broadcast_to((5 * y)[:, None, None], (count, SIDE, SIDE))
        write_idx(
            folder / names.format(part=part, kind="images-idx3"),
            np.ascontiguousarray(x),
        )
        write_idx(folder / names.format(part=part, kind="labels-idx1"), y)


def write_parquet(folder: Path, classes: int, train: int) -> None:
    """Colour images in the Hugging Face image layout."""
    folder.mkdir(parents=True)
    shades = []
    for label in range(classes):
        plain = np.full((SIDE, SIDE, 3), (5 * label, 100, 200), np.uint8)
        shades.append({"bytes": png(plain)})
    for part, count in (("train", train), ("test", 4 * classes)):
        y = np.arange(count) % classes
        table = pa.table({"image": [shades[label] for label in y], "label": y})
        pq.write_table(table, folder / f"{part}.parquet")


def write_stl10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STL-10's raw planes; torchvision is told to trust these files' checksums."""
    folder.mkdir()
    y = np.arange(900) % 10
    x = np.broadcast_to(y.astype(np.uint8)[:, None, None, None], (900, 3, 96, 96))
    for part, rows in (("train", slice(0, 800)), ("test", slice(800, 900))):
        (folder / f"{part}_X.bin").write_bytes(np.ascontiguousarray(x[rows]).tobytes())
        (folder / f"{part}_y.bin").write_bytes((y[rows] + 1).astype(np.uint8).tobytes())
    (folder / "unlabeled_X.bin").write_bytes(b"")
    trust(monkeypatch, tv.STL10, folder)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def trust(monkeypatch: pytest.MonkeyPatch, kind: Any, folder: Path) -> None:
    """Let torchvision verify the small files against their own checksums, not the real ones'."""
    for part in ("train_list", "test_list"):
        listed = [[name, md5(folder / name)] for name, _ in getattr(kind, part)]
        monkeypatch.setattr(kind, part, listed)


def write_play(path: Path) -> None:
    """One long speech for each of so many speakers."""
    path.parent.mkdir(parents=True)
    names = [
        f"{'ABCDEFGHIJKLMNOPQRST'[i // 10]}{'KLMNOPQRST'[i % 10]}"
        for i in range(SPEAKERS)
    ]
    path.write_text("\n\n".join(f"{name}:\n{'to be or not ' * 60}" for name in names))


def write_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dataset that an experiment names, below one data root."""
    write_images(root / "MNIST" / "raw", "{part}-{kind}-ubyte", 10, 8000)
    write_images(root / "FashionMNIST" / "raw", "{part}-{kind}-ubyte", 10, 14000)
    for name in ("MNIST", "FashionMNIST"):
        for file in (root / name / "raw").glob("test-*"):
            file.rename(file.with_name(file.name.replace("test", "t10k")))
    write_images(
        root / "EMNIST" / "raw", "emnist-balanced-{part}-{kind}-ubyte", 47, 47000
    )
    write_parquet(root / "cifar10", 10, 52000)
    write_stl10(root / "stl10_binary", monkeypatch)
    write_play(root / "shakespeare" / "input.txt")
