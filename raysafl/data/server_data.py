"""The server's own data D0: from the training set, from clients, or from another dataset."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, field_validator

from raysafl.core.client_indices import Ints
from raysafl.core.component import Component
from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key
from raysafl.data.partitions import even_counts
from raysafl.data.sources import ImageSource, Source

NOTHING = np.empty(0, np.int64)
Bytes = NDArray[np.uint8]
# The CIFAR-10 class of each class of STL-10 (airplane, bird, car, cat, deer, dog,
# horse, monkey, ship, truck); CIFAR-10 has no monkey.
STL10_AS_CIFAR10: list[int | None] = [0, 2, 1, 3, 4, 5, 7, None, 8, 9]


class ServerData(Component):
    """How the server gets its data D0. Subclass it and override one of the three methods.

    Attributes:
        needs_classes: Whether each sample must have one class. A federation then
            refuses data with other targets, such as numbers.

    Example:
        >>> import numpy as np
        >>> import raysafl as fl
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> rows = fl.data.StratifiedServer(n0=2).draw(labels, 2, np.random.default_rng(0))
        >>> labels[rows].tolist()
        [0, 1]
    """

    abstract: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = False

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw positions in `labels` that become the server's and that no client gets.

        Args:
            labels: the class of each training sample, [S]; if `needs_classes` is not
                set, any targets, [S, ...].
            num_classes: the number of classes; 0 if there are none.
            rng: the only source of randomness.

        Raises:
            ValueError: these samples cannot be drawn.
        """
        return NOTHING

    def collect(
        self, clients: Sequence[Ints], rng: np.random.Generator
    ) -> tuple[Ints, Sequence[Ints]]:
        """Collect samples from clients.

        Args:
            clients: the samples that each client holds.
            rng: the only source of randomness.

        Returns:
            The samples that the server gets, and the samples that each client holds
            then.

        Raises:
            ValueError: the clients do not hold enough samples.
        """
        return NOTHING, clients

    def outside(self, dataset: Dataset) -> Samples | None:
        """Make samples that are not in the dataset, in the form of its training samples.

        Raises:
            ValueError: no such samples can be made for this dataset.
        """
        return None


class DrawnServer(ServerData):
    """The base of rules that draw n0 training samples, which no client then holds."""

    abstract: ClassVar[bool] = True
    n0: int = Field(gt=0, description="Number of samples that the server holds.")

    @abstractmethod
    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw n0 positions in `labels` without replacement (see `ServerData.draw`)."""

    def check(self, available: int) -> None:
        """Check that clients keep some of the `available` training samples.

        Raises:
            ValueError: n0 is not below the number of training samples.
        """
        if self.n0 >= available:
            raise ValueError(
                f"server data of n0 = {self.n0} samples leaves no client data: the training set "
                f"has {available}; choose n0 below that"
            )


class IidServer(DrawnServer):
    """The server holds n0 training samples, drawn uniformly without replacement.

    Source: SAFARI's "auxiliary dataset T i.i.d. from P" (docs/papers.md#safari).
    """

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw n0 positions uniformly (see `ServerData.draw`)."""
        self.check(len(labels))
        return np.sort(rng.choice(len(labels), self.n0, replace=False))


class StratifiedServer(DrawnServer):
    """The server holds n0 training samples, equally many of each class.

    If n0 is no multiple of the number of classes, random classes get one sample more.
    """

    needs_classes: ClassVar[bool] = True

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw n0 // C samples of each of C classes, and one more of n0 % C of them.

        Raises:
            ValueError: a class has too few samples.
        """
        self.check(len(labels))
        parts = []
        for c, want in enumerate(even_counts(self.n0, num_classes, rng).tolist()):
            pool = np.flatnonzero(labels == c)
            if want > len(pool):
                raise ValueError(
                    f"stratified server data needs {want} samples of class {c}, but there are "
                    f"{len(pool)}; choose a smaller n0 or IidServer"
                )
            parts.append(rng.choice(pool, want, replace=False))
        return np.sort(np.concatenate(parts))


class FromClients(ServerData):
    """The server gets `per_client` random samples from each of c random clients.

    The clients are drawn once, before training. The server's data are as skewed as
    those of the clients that give them.

    Source: FSL, scenario 2a (docs/papers.md#fsl). In its CIFAR-10 setting a client
    holds 50 samples and gives 50, so by default the server gets copies.
    """

    c: int = Field(gt=0, description="Number of clients that give samples.")
    per_client: int = Field(
        gt=0, description="Number of samples that each of them gives."
    )
    copies: bool = Field(
        default=True, description="Whether clients keep the samples that they give."
    )

    def collect(
        self, clients: Sequence[Ints], rng: np.random.Generator
    ) -> tuple[Ints, Sequence[Ints]]:
        """Collect `per_client` samples without replacement from each of c clients.

        If two of them hold the same sample (`Overlapping`), the server may get it twice.

        Raises:
            ValueError: there are fewer than c clients, or one holds too few samples; or
                clients do not keep copies, and two of them hold the same sample.
        """
        if self.c > len(clients):
            raise ValueError(
                f"server data from c = {self.c} clients, but there are {len(clients)}; lower c"
            )
        together = NOTHING if self.copies else np.concatenate(list(clients))
        if len(np.unique(together)) < len(together):
            raise ValueError(
                "copies=False takes the samples that clients give from them, but two clients "
                "hold the same sample; take copies=True, or another partition"
            )
        givers = np.sort(rng.choice(len(clients), self.c, replace=False))
        given = []
        remaining: dict[int, Ints] = {}
        for i in givers.tolist():
            samples = clients[i]
            held = len(samples)
            if self.per_client > held or (self.per_client == held and not self.copies):
                rest = "" if self.copies else " and must keep one (copies=False)"
                raise ValueError(
                    f"client {i} cannot give per_client = {self.per_client} samples: it holds "
                    f"{held}{rest}; lower per_client"
                )
            given.append(np.sort(rng.choice(samples, self.per_client, replace=False)))
            remaining[i] = np.setdiff1d(samples, given[-1], assume_unique=True)

        if self.copies:
            return np.concatenate(given), clients
        return np.concatenate(given), [
            remaining.get(i, own) for i, own in enumerate(clients)
        ]


def _shape(dataset: Dataset) -> tuple[int, int, int]:
    """Return (channels, height, width) of the images.

    Raises:
        ValueError: the dataset holds no uint8 images with one or three channels.
    """
    x = dataset.train.x
    if x.ndim != 4 or x.dtype != np.uint8 or x.shape[1] not in (1, 3):
        raise ValueError(
            f"server data of images needs a dataset of images; '{dataset.name}' has "
            f"{x.dtype} samples of shape {x.shape[1:]}"
        )
    return x.shape[1], x.shape[2], x.shape[3]


def fit_images(images: Iterable[Bytes], labels: Any, dataset: Dataset) -> Samples:
    """Fit images with values 0 to 255 to the shape and the range of a dataset.

    They get the dataset's scale and shift, so that they are standardised if it is.

    Args:
        images: the pixels of each, [channels, height, width], with one or three channels.
        labels: the class of each.
        dataset: whose images they are to be like.

    Raises:
        ValueError: the dataset holds no images.
    """
    # Imported here, because few runs have images of the server's own.
    from PIL import Image

    channels, height, width = _shape(dataset)
    mode = "L" if channels == 1 else "RGB"
    # Bilinear resampling averages over all pixels that a new pixel replaces.
    smooth = Image.Resampling.BILINEAR
    fitted = []
    for pixels in images:
        laid_out = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
        image = Image.fromarray(laid_out).convert(mode).resize((width, height), smooth)
        fitted.append(np.asarray(image).reshape(height, width, channels))
    x = np.stack(fitted)
    # The brightest value of the dataset stands for 255; in `Digits` it is 16.
    top = int(dataset.train.x.max())
    if top != 255:
        x = np.rint(x * (top / 255)).astype(np.uint8)
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return Samples(
        x, np.asarray(labels, np.int64), dataset.train.scale, dataset.train.shift
    )


class OtherDatasetServer(ServerData):
    """The server holds n0 training images of another dataset, resized to fit.

    Equally many images of each class are drawn, the same ones in all replicates; if n0
    is no multiple of the number of classes, random classes get one image more.

    Source: FSL, scenario 2b, which takes STL-10 for CIFAR-10 (docs/papers.md#fsl); its
    classes are `STL10_AS_CIFAR10`.
    """

    needs_classes: ClassVar[bool] = True
    dataset: SerializeAsAny[Source] = Field(description="The other dataset.")
    n0: int = Field(gt=0, description="Number of images that the server holds.")
    classes: list[int | None] = Field(
        description="For each class of the other dataset, its class in the run's dataset; "
        "None leaves it out."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the draw.")

    @field_validator("dataset")
    @classmethod
    def _not_standardised(cls, dataset: Source) -> Source:
        sources = dataset.components()
        if any(
            isinstance(s, ImageSource) and s.standardise is not False for s in sources
        ):
            raise ValueError(
                "the server's images are scaled as the run's dataset is; give "
                "`standardise` to that one alone"
            )
        return dataset

    def outside(self, dataset: Dataset) -> Samples:
        """Read the other dataset and fit n0 of its images to this one.

        Raises:
            ValueError: one of them holds no images, `classes` does not fit, or a
                class has too few images.
        """
        _shape(dataset)
        other = self.dataset.load()
        self._check(other, dataset)
        _shape(other)
        rng = Key(self.seed)("other data")
        used = [i for i, label in enumerate(self.classes) if label is not None]
        wanted = even_counts(self.n0, len(used), rng)

        rows = []
        labels = []
        for i, want in zip(used, wanted.tolist(), strict=True):
            pool = np.flatnonzero(other.train.y == i)
            if want > len(pool):
                raise ValueError(
                    f"n0 = {self.n0} needs {want} images of class {i} of '{other.name}', which "
                    f"has {len(pool)}; choose a smaller n0"
                )
            rows.append(np.sort(rng.choice(pool, want, replace=False)))
            labels += [self.classes[i]] * want

        x = other.train.x[np.concatenate(rows)]
        # The other dataset may have another range of values, as `Digits` has.
        x = np.rint(x * (255 / int(other.train.x.max()))).astype(np.uint8)
        return fit_images(x, labels, dataset)

    def _check(self, other: Dataset, dataset: Dataset) -> None:
        """Check that `classes` covers the other dataset and names classes of this one."""
        if len(self.classes) != other.num_classes:
            raise ValueError(
                f"classes has {len(self.classes)} entries, but '{other.name}' has "
                f"{other.num_classes} classes: give each its class in '{dataset.name}', or None"
            )
        wrong = [
            c
            for c in self.classes
            if c is not None and not 0 <= c < dataset.num_classes
        ]
        if wrong or all(c is None for c in self.classes):
            raise ValueError(
                f"classes names {wrong or 'no class at all'}; the classes of "
                f"'{dataset.name}' are 0 to {dataset.num_classes - 1}"
            )
