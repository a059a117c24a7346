"""Image sets that torchvision reads: MNIST and its kin, CIFAR, CINIC-10, SVHN, STL-10.

The files lie in the folder that `RAYSAFL_DATA` names, in torchvision's layout. Files
that are missing are downloaded if there is a network (but for CINIC-10). Images have the
shape [n, channels, height, width]; they are stored as uint8, and scaled to [0, 1] or
standardised when a batch is drawn (see `ImageSource`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from raysafl.core.problem import Dataset, Samples
from raysafl.data.own_arrays import pixels_of
from raysafl.data.sources import ImageSource, data_root

# The 47 classes of EMNIST's balanced split, in the order of its labels.
EMNIST_LABELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"


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


class _OfTorchvision(ImageSource):
    """Images that torchvision reads, and downloads if they are missing."""

    abstract: ClassVar[bool] = True
    # The dataset's name. Without hyphens it is that of the class in torchvision.
    title: ClassVar[str]
    # The folder of the files in the folder `RAYSAFL_DATA`.
    folder: ClassVar[str]
    # The folder that torchvision is told, if it is not `RAYSAFL_DATA` itself.
    root: ClassVar[str] = ""
    # By which arguments the class reads the training part and the test part.
    parts: ClassVar[Sequence[dict[str, Any]]] = ({"train": True}, {"train": False})
    # The names of the classes, if they are not those that torchvision gives.
    classes: ClassVar[Sequence[str]] = ()

    def read(self) -> Dataset:
        """Read torchvision's files, or download them if they are missing.

        Raises:
            ValueError: the files are missing or damaged, and cannot be downloaded.
        """
        from torchvision import datasets

        kind = getattr(datasets, self.title.replace("-", ""))
        root = data_root() / self.root
        try:
            parts = [kind(root, download=False, **part) for part in self.parts]
        # Missing, damaged or empty files all end here; the download replaces them.
        except (OSError, RuntimeError, ValueError):
            try:
                parts = [kind(root, download=True, **part) for part in self.parts]
            except (OSError, RuntimeError, ValueError, BadZipFile) as error:
                raise ValueError(
                    f"{self.title} is not whole in {data_root() / self.folder} and cannot "
                    f"be downloaded ({error}). Put the files there that torchvision reads, "
                    "delete damaged ones, or point RAYSAFL_DATA at the folder that holds "
                    f"{self.folder}"
                ) from error
        images = [np.asarray(part.data) for part in parts]
        if images[0].ndim == 3:
            images = [x[:, None] for x in images]
        elif images[0].shape[3] == 3:
            images = [x.transpose(0, 3, 1, 2) for x in images]
        labels = [vars(part).get("targets", vars(part).get("labels")) for part in parts]
        name = type(self).__name__.lower()
        return _make_dataset(name, images, labels, self.classes or parts[0].classes)


class Mnist(_OfTorchvision):
    """MNIST, handwritten digits: 60,000 + 10,000 images [1, 28, 28], scaled to [0, 1].

    Source: LeCun et al. 1998 (docs/papers.md#mnist).
    """

    title: ClassVar[str] = "MNIST"
    folder: ClassVar[str] = "MNIST/raw"
    classes: ClassVar[Sequence[str]] = "0123456789"


class FashionMnist(_OfTorchvision):
    """Fashion-MNIST, articles of clothing: 60,000 + 10,000 images [1, 28, 28].

    Source: Xiao et al. 2017 (docs/papers.md#fashion-mnist).
    """

    title: ClassVar[str] = "Fashion-MNIST"
    folder: ClassVar[str] = "FashionMNIST/raw"


class Emnist(_OfTorchvision):
    """EMNIST, balanced split: digits and letters [1, 28, 28], by default 45 classes.

    The files of EMNIST hold transposed images; here they stand upright. Labels are
    renumbered from 0 after classes have been dropped.

    Source: Cohen et al. 2017 (docs/papers.md#emnist). FSL (docs/papers.md#fsl) uses 45
    of the split's 47 classes (108,000 = 45 * 2,400 training images) and does not say
    which. The default drops the last two, r and t, so that the other labels stay what
    they are. FSL tests on 10,000 images and does not say on which; here all 18,000 test
    images of the remaining classes are used.
    """

    title: ClassVar[str] = "EMNIST"
    folder: ClassVar[str] = "EMNIST/raw"
    parts: ClassVar[Sequence[dict[str, Any]]] = (
        {"train": True, "split": "balanced"},
        {"train": False, "split": "balanced"},
    )
    classes: ClassVar[Sequence[str]] = EMNIST_LABELS
    drop: list[Annotated[int, Field(ge=0, le=46)]] = Field(
        default=[45, 46],
        max_length=45,
        description="Labels of EMNIST (0 to 46) that are left out, 45 of them at most.",
    )

    @field_validator("drop")
    @classmethod
    def _each_once(cls, drop: list[int]) -> list[int]:
        return sorted(set(drop))

    def read(self) -> Dataset:
        """Read the images, turn them upright and leave the classes of `drop` out."""
        whole = super().read()
        kept = [label for label in range(47) if label not in self.drop]
        train, test = (
            replace(
                some,
                x=np.ascontiguousarray(some.x.transpose(0, 1, 3, 2)),
                y=np.searchsorted(kept, some.y),
            )
            for some in (
                part.take(np.isin(part.y, kept)) for part in (whole.train, whole.test)
            )
        )
        names = tuple(whole.names[label] for label in kept)
        return replace(
            whole, train=train, test=test, num_classes=len(kept), names=names
        )


class Cifar10(_OfTorchvision):
    """CIFAR-10: 50,000 + 10,000 colour images [3, 32, 32] in ten classes.

    Source: Krizhevsky 2009 (docs/papers.md#cifar10).
    """

    title: ClassVar[str] = "CIFAR-10"
    folder: ClassVar[str] = "cifar-10-batches-py"


class Cifar100(_OfTorchvision):
    """CIFAR-100: 50,000 + 10,000 colour images [3, 32, 32] in 100 classes (fine labels).

    Source: Krizhevsky 2009 (docs/papers.md#cifar10).
    """

    title: ClassVar[str] = "CIFAR-100"
    folder: ClassVar[str] = "cifar-100-python"


class Svhn(_OfTorchvision):
    """SVHN, house numbers: 73,257 + 26,032 colour images [3, 32, 32] of ten digits.

    The files lie in the folder `SVHN`. The further 531,131 training images, "extra", are
    not read.

    Source: Netzer et al. 2011 (docs/papers.md#svhn).
    """

    title: ClassVar[str] = "SVHN"
    folder: ClassVar[str] = "SVHN"
    root: ClassVar[str] = "SVHN"
    parts: ClassVar[Sequence[dict[str, Any]]] = ({"split": "train"}, {"split": "test"})
    classes: ClassVar[Sequence[str]] = "0123456789"


class Stl10(_OfTorchvision):
    """STL-10: 5,000 + 8,000 labelled colour images [3, 96, 96] in ten classes.

    Source: Coates et al. 2011 (docs/papers.md#stl10).
    """

    title: ClassVar[str] = "STL-10"
    folder: ClassVar[str] = "stl10_binary"
    parts: ClassVar[Sequence[dict[str, Any]]] = ({"split": "train"}, {"split": "test"})
    classes: ClassVar[Sequence[str]] = (
        "airplane bird car cat deer dog horse monkey ship truck".split()
    )


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
