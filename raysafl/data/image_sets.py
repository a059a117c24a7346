"""Image sets that torchvision reads: MNIST and its kin, CIFAR, CINIC-10, SVHN, STL-10.

The files lie in the folder that `RAYSAFL_DATA` names, in torchvision's layout. Files
that are missing are downloaded if there is a network (but for CINIC-10). Images have the
shape [n, channels, height, width]; they are stored as uint8, and scaled to [0, 1] or
standardised when a batch is drawn (see `ImageSource`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from raysafl.core.problem import Dataset, Samples
from raysafl.data.own_arrays import pixels_of
from raysafl.data.sources import ImageSource, data_root

# The 47 classes of EMNIST's balanced split, in the order of its labels.
EMNIST_LABELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"


def read_or_download(
    name: str, layout: str, files: Sequence[str], read: Callable[..., Any]
) -> list[Any]:
    """Read the training part and the test part, downloading them if they are not there.

    Args:
        name: the dataset's name, for messages.
        layout: the folder of its files in the folder `RAYSAFL_DATA`.
        files: the names of its files.
        read: `read(root, train=, download=)` returns one part, as torchvision's classes
            do.

    Raises:
        ValueError: the files are missing (they are named) or damaged, and cannot be
            downloaded.
    """
    root = str(data_root())
    folder = data_root() / layout
    try:
        return [read(root, train=train, download=False) for train in (True, False)]
    except (OSError, RuntimeError, ValueError):
        # Missing, damaged or empty files all end here; the download below replaces
        # them.
        pass
    try:
        return [read(root, train=train, download=True) for train in (True, False)]
    except (OSError, RuntimeError, ValueError, BadZipFile) as error:
        missing = [file for file in files if not (folder / file).is_file()]
        if not missing:
            raise ValueError(
                f"the {name} files in {folder} are damaged ({error}); delete them, and they "
                "are downloaded again"
            ) from error
        raise ValueError(
            f"{name} is not in {folder} and cannot be downloaded ({error}). Missing: "
            f"{', '.join(missing)}. Put the files there, or point RAYSAFL_DATA at the "
            f"folder that holds {layout}"
        ) from error


def _make_dataset(
    name: str,
    images: Sequence[NDArray[np.uint8]],
    labels: Sequence[Any],
    classes: Sequence[str],
) -> Dataset:
    """Put the images and labels of the two parts (training, test) into a `Dataset`."""
    train, test = (
        Samples(np.ascontiguousarray(x), np.asarray(y, np.int64), 1 / 255)
        for x, y in zip(images, labels, strict=True)
    )
    return Dataset(name, train, test, num_classes=len(classes), names=tuple(classes))


def _mnist_like(kind: Any, name: str, classes: Sequence[str]) -> Dataset:
    """Load a dataset in the file format of MNIST with the torchvision class `kind`."""
    files = [Path(file).stem for file, _ in kind.resources]
    parts = read_or_download(name, f"{kind.__name__}/raw", files, kind)
    images = [part.data.unsqueeze(1).numpy() for part in parts]
    labels = [part.targets.numpy() for part in parts]
    return _make_dataset(name.lower(), images, labels, classes)


class Mnist(ImageSource):
    """MNIST, handwritten digits: 60,000 + 10,000 images [1, 28, 28], scaled to [0, 1].

    Source: LeCun et al. 1998 (docs/papers.md#mnist).
    """

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing."""
        from torchvision.datasets import MNIST

        return _mnist_like(MNIST, "MNIST", "0123456789")


class FashionMnist(ImageSource):
    """Fashion-MNIST, articles of clothing: 60,000 + 10,000 images [1, 28, 28].

    Source: Xiao et al. 2017 (docs/papers.md#fashion-mnist).
    """

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing."""
        from torchvision.datasets import FashionMNIST

        return _mnist_like(FashionMNIST, "Fashion-MNIST", FashionMNIST.classes)


class Emnist(ImageSource):
    """EMNIST, balanced split: digits and letters [1, 28, 28], by default 45 classes.

    The files of EMNIST hold transposed images; here they stand upright. Labels are
    renumbered from 0 after classes have been dropped.

    Source: Cohen et al. 2017 (docs/papers.md#emnist). FSL (docs/papers.md#fsl) uses 45
    of the split's 47 classes (108,000 = 45 * 2,400 training images) and does not say
    which. The default drops the last two, r and t, so that the other labels stay what
    they are. FSL tests on 10,000 images and does not say on which; here all 18,000 test
    images of the remaining classes are used.
    """

    drop: list[int] = Field(
        default=[45, 46],
        description="Labels of EMNIST (0 to 46) that are left out, 45 of them at most.",
    )

    @field_validator("drop")
    @classmethod
    def _known(cls, drop: list[int]) -> list[int]:
        if set(drop) - set(range(47)) or len(set(drop)) != len(drop) or len(drop) > 45:
            raise ValueError(
                f"drop must hold distinct labels from 0 to 46, 45 at most, not {drop}"
            )
        return sorted(drop)

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing."""
        from torchvision.datasets import EMNIST

        files = [
            f"emnist-balanced-{part}-{kind}-ubyte"
            for part in ("train", "test")
            for kind in ("images-idx3", "labels-idx1")
        ]
        read = partial(EMNIST, split="balanced")
        parts = read_or_download("EMNIST", "EMNIST/raw", files, read)
        kept = [label for label in range(47) if label not in self.drop]
        images = []
        labels = []
        for part in parts:
            y = part.targets.numpy()
            rows = np.isin(y, kept)
            images.append(part.data.numpy()[rows].transpose(0, 2, 1)[:, None])
            labels.append(np.searchsorted(kept, y[rows]))
        return _make_dataset(
            "emnist", images, labels, [EMNIST_LABELS[label] for label in kept]
        )


def _cifar_like(kind: Any, name: str) -> Dataset:
    """Load a dataset in the file format of CIFAR with the torchvision class `kind`."""
    files = [file for file, _ in kind.train_list + kind.test_list]
    files += [kind.meta["filename"]]
    parts = read_or_download(name, kind.base_folder, files, kind)
    images = [part.data.transpose(0, 3, 1, 2) for part in parts]
    labels = [part.targets for part in parts]
    return _make_dataset(
        name.lower().replace("-", ""), images, labels, parts[0].classes
    )


class Cifar10(ImageSource):
    """CIFAR-10: 50,000 + 10,000 colour images [3, 32, 32] in ten classes.

    Source: Krizhevsky 2009 (docs/papers.md#cifar10).
    """

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing."""
        from torchvision.datasets import CIFAR10

        return _cifar_like(CIFAR10, "CIFAR-10")


class Cifar100(ImageSource):
    """CIFAR-100: 50,000 + 10,000 colour images [3, 32, 32] in 100 classes (fine labels).

    Source: Krizhevsky 2009 (docs/papers.md#cifar10).
    """

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing."""
        from torchvision.datasets import CIFAR100

        return _cifar_like(CIFAR100, "CIFAR-100")


class Cinic10(ImageSource):
    """CINIC-10: 90,000 + 90,000 colour images [3, 32, 32] in the classes of CIFAR-10.

    They lie in `CINIC-10/train` and `CINIC-10/test`, in a folder for each class; the
    90,000 in `valid` are not read. Where they are in Parquet, `ParquetImages` reads them.

    Source: Darlow et al. 2018 (docs/papers.md#cinic10).
    """

    def read(self) -> Dataset:
        """Read the images in the folders.

        Raises:
            ValueError: a folder is missing or empty, or images differ in size.
        """
        from torchvision.datasets import ImageFolder

        root = data_root() / "CINIC-10"
        try:
            parts = [ImageFolder(root / name) for name in ("train", "test")]
            images = [np.stack([pixels_of(x) for x, _ in part]) for part in parts]
            if parts[0].classes != parts[1].classes:
                raise ValueError("train and test differ in their classes")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"CINIC-10 cannot be read from {root} ({error}); unpack CINIC-10.tar.gz there "
                "(https://datashare.ed.ac.uk/handle/10283/3192), or set RAYSAFL_DATA"
            ) from error
        labels = [part.targets for part in parts]
        return _make_dataset("cinic10", images, labels, parts[0].classes)


class Svhn(ImageSource):
    """SVHN, house numbers: 73,257 + 26,032 colour images [3, 32, 32] of ten digits.

    The files lie in the folder `SVHN`. The further 531,131 training images, "extra", are
    not read.

    Source: Netzer et al. 2011 (docs/papers.md#svhn).
    """

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing."""
        from torchvision.datasets import SVHN

        def read(root: str, train: bool, download: bool) -> SVHN:
            split = "train" if train else "test"
            return SVHN(f"{root}/SVHN", split, download=download)

        files = [SVHN.split_list[split][1] for split in ("train", "test")]
        parts = read_or_download("SVHN", "SVHN", files, read)
        images = [part.data for part in parts]
        labels = [part.labels for part in parts]
        return _make_dataset("svhn", images, labels, "0123456789")


class Stl10(ImageSource):
    """STL-10: 5,000 + 8,000 labelled colour images [3, 96, 96] in ten classes.

    Source: Coates et al. 2011 (docs/papers.md#stl10).
    """

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing."""
        from torchvision.datasets import STL10

        def read(root: str, train: bool, download: bool) -> STL10:
            return STL10(root, split="train" if train else "test", download=download)

        files = [name for name, _ in STL10.train_list + STL10.test_list]
        parts = read_or_download("STL-10", STL10.base_folder, files, read)
        names = "airplane bird car cat deer dog horse monkey ship truck".split()
        images = [part.data for part in parts]
        labels = [part.labels for part in parts]
        return _make_dataset("stl10", images, labels, names)
