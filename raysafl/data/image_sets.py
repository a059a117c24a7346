"""Image sets that torchvision reads: MNIST, Fashion-MNIST, EMNIST, CIFAR-10, STL-10.

Files lie under the data root in torchvision's layout and are downloaded if they are not there
and there is a network. Images are [n, channels, height, width], uint8, scaled to [0, 1].
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from raysafl.core.problem import Dataset, Samples
from raysafl.data.sources import Source, data_root

# the 47 classes of EMNIST's balanced split, in the order of its labels
EMNIST_LABELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"


def fetch(
    name: str, folder: Path, files: Sequence[str], read: Callable[[bool, bool], Any]
) -> list[Any]:
    """Training and test part as `read(train, download)` gives them: from files, else downloaded.

    Raises:
        ValueError: the files are missing (named) or damaged, and cannot be downloaded.
    """
    try:
        return [read(train, False) for train in (True, False)]
    except (OSError, RuntimeError, ValueError):  # ValueError: an empty file
        pass
    try:
        return [read(train, True) for train in (True, False)]
    except (OSError, RuntimeError, ValueError, BadZipFile) as error:
        missing = [file for file in files if not (folder / file).is_file()]
        if not missing:
            raise ValueError(
                f"the {name} files in {folder} are damaged ({error}); delete them, and they "
                "are downloaded again"
            ) from error
        layout = folder.relative_to(data_root())
        raise ValueError(
            f"{name} is not in {folder} and cannot be downloaded ({error}). Missing: "
            f"{', '.join(missing)}. Put the files there, or point RAYSAFL_DATA at the "
            f"folder that holds {layout}"
        ) from error


def _dataset(
    name: str,
    images: Sequence[NDArray[np.uint8]],
    labels: Sequence[Any],
    classes: Sequence[str],
) -> Dataset:
    train, test = (
        Samples(np.ascontiguousarray(x), np.asarray(y, np.int64), 1 / 255)
        for x, y in zip(images, labels, strict=True)
    )
    return Dataset(name, train, test, num_classes=len(classes), names=tuple(classes))


def _mnist_like(kind: Any, name: str, classes: Sequence[str]) -> Dataset:
    root = data_root()
    parts = fetch(
        name,
        root / kind.__name__ / "raw",
        [Path(file).stem for file, _ in kind.resources],
        lambda train, download: kind(str(root), train=train, download=download),
    )
    images = [part.data.unsqueeze(1).numpy() for part in parts]
    labels = [part.targets.numpy() for part in parts]
    return _dataset(name.lower(), images, labels, classes)


class Mnist(Source):
    """MNIST (LeCun et al. 1998): 60,000 + 10,000 images [1, 28, 28], scaled to [0, 1]."""

    def load(self) -> Dataset:
        """Read torchvision's files from the data root; download them if there is a network."""
        from torchvision.datasets import MNIST

        return _mnist_like(MNIST, "MNIST", "0123456789")


class FashionMnist(Source):
    """Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images [1, 28, 28] of clothes."""

    def load(self) -> Dataset:
        """Read torchvision's files from the data root; download them if there is a network."""
        from torchvision.datasets import FashionMNIST

        return _mnist_like(FashionMNIST, "Fashion-MNIST", FashionMNIST.classes)


class Emnist(Source):
    """EMNIST, balanced split (Cohen et al. 2017): digits and letters [1, 28, 28], 45 classes.

    FSL uses 45 of the split's 47 classes (108,000 = 45 * 2,400 training images) and does not say
    which; `drop` names the labels left out. The default drops the last two, r and t, so that the
    other labels stay what they are in EMNIST. Labels are renumbered from 0. All 18,000 test
    images of the classes kept are used (FSL: 10,000, unsaid which). EMNIST's files hold the
    images transposed; here they stand upright.
    """

    drop: list[int] = Field(default=[45, 46])

    @field_validator("drop")
    @classmethod
    def _known(cls, drop: list[int]) -> list[int]:
        if set(drop) - set(range(47)) or len(set(drop)) != len(drop) or len(drop) > 45:
            raise ValueError(f"drop must hold distinct labels from 0 to 46, 45 at most, not {drop}")
        return sorted(drop)

    def load(self) -> Dataset:
        """Read torchvision's files from the data root; download them if there is a network."""
        from torchvision.datasets import EMNIST

        root = data_root()
        files = [
            f"emnist-balanced-{part}-{kind}-ubyte"
            for part in ("train", "test")
            for kind in ("images-idx3", "labels-idx1")
        ]
        parts = fetch(
            "EMNIST",
            root / "EMNIST" / "raw",
            files,
            lambda train, download: EMNIST(str(root), "balanced", train=train, download=download),
        )
        kept = [label for label in range(47) if label not in self.drop]
        images, labels = [], []
        for part in parts:
            y = part.targets.numpy()
            rows = np.isin(y, kept)
            images.append(part.data.numpy()[rows].transpose(0, 2, 1)[:, None])
            labels.append(np.searchsorted(kept, y[rows]))
        return _dataset("emnist", images, labels, [EMNIST_LABELS[label] for label in kept])


class Cifar10(Source):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images [3, 32, 32], scaled to [0, 1]."""

    def load(self) -> Dataset:
        """Read torchvision's files from the data root; download them if there is a network."""
        from torchvision.datasets import CIFAR10

        root = data_root()
        parts = fetch(
            "CIFAR-10",
            root / CIFAR10.base_folder,
            [name for name, _ in CIFAR10.train_list + CIFAR10.test_list]
            + [CIFAR10.meta["filename"]],
            lambda train, download: CIFAR10(str(root), train=train, download=download),
        )
        images = [part.data.transpose(0, 3, 1, 2) for part in parts]
        return _dataset("cifar10", images, [part.targets for part in parts], parts[0].classes)


class Stl10(Source):
    """STL-10 (Coates et al. 2011): 5,000 + 8,000 labelled colour images [3, 96, 96]."""

    def load(self) -> Dataset:
        """Read torchvision's files from the data root; download them if there is a network."""
        from torchvision.datasets import STL10

        root = data_root()
        parts = fetch(
            "STL-10",
            root / STL10.base_folder,
            [name for name, _ in STL10.train_list + STL10.test_list],
            lambda train, download: STL10(
                str(root), split="train" if train else "test", download=download
            ),
        )
        names = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship"]
        images, labels = [part.data for part in parts], [part.labels for part in parts]
        return _dataset("stl10", images, labels, [*names, "truck"])
