"""The learning problem of a run: its samples, how they are spread, and its model.

These are the interfaces between data, models and the rest of the package. The datasets,
partitions and models themselves are in `raysafl.data` and `raysafl.models`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from raysafl.core.client_indices import ClientIndices, as_client_indices
from raysafl.core.component import Component, method_name
from raysafl.core.randomness import Key as Key

# Ids that stand for no single client: the server with its own data, and all clients'
# data as one, for centralised SGD.
SERVER = -1
EVERYONE = -2
# Frozen parameters are those of a module that was built with torch's generator at this
# seed, whatever the seed of the run. So they are the same in every process.
FROZEN_SEED = 0


@dataclass(frozen=True)
class Augmentation:
    """Each image is moved by up to `padding` pixels, and mirrored in half of the cases.

    Args:
        padding: The number of zeros by which each side is extended; of the result, a
            part of the image's size is cut out anywhere.
        flip: Whether left and right change places with probability 1/2.
    """

    padding: int
    flip: bool

    def applied(self, x_S: Tensor, words_3S: Tensor) -> Tensor:
        """Return the images as they are cut out.

        Args:
            x_S: [S, channels, height, width] images of any type.
            words_3S: [3, S] random int32 over their whole range: where an image is cut
                out vertically and horizontally, and whether it is mirrored.
        """
        height, width = x_S.shape[2:]
        # The remainder of a negative number is not negative, either.
        down_S, right_S = words_3S[:2].long() % (2 * self.padding + 1) - self.padding
        row_SH = torch.arange(height, device=x_S.device) + down_S[:, None]
        column_SW = torch.arange(width, device=x_S.device).expand(len(x_S), -1)
        if self.flip:
            mirrored_S1 = (words_3S[2] >= 0)[:, None]
            column_SW = torch.where(mirrored_S1, width - 1 - column_SW, column_SW)
        column_SW = column_SW + right_S[:, None]

        # Pixels outside of the image are read anywhere in it, and become zero.
        is_inside_SHW = _below(row_SH, height)[:, :, None]
        is_inside_SHW = is_inside_SHW & _below(column_SW, width)[:, None, :]
        row_SH1 = row_SH.clamp(0, height - 1)[:, :, None]
        pixel_SHW = row_SH1 * width + column_SW.clamp(0, width - 1)[:, None, :]
        pixel_SCp = pixel_SHW.flatten(1)[:, None].expand(-1, x_S.shape[1], -1)
        cut_S = x_S.flatten(2).gather(2, pixel_SCp).view(x_S.shape)
        return cut_S * is_inside_SHW[:, None]


def _below(index: Tensor, limit: int) -> Tensor:
    """Return which indices lie from 0 to limit - 1."""
    return (index >= 0) & (index < limit)


@dataclass(frozen=True)
class Column:
    """A value of each sample that is no input, such as the hospital that it is from.

    A partition may make a client of each value (`raysafl.data.ByColumn`).

    Attributes:
        codes: [n] the position of each sample's value in `values`; -1: it has none.
        values: the distinct values as text, in the ascending order of the values. Equal
            columns of a training set and a test set have equal `values`.
    """

    codes: NDArray[np.int64]
    values: tuple[str, ...]

    def take(self, rows: Any) -> Self:
        """Return the column of some samples.

        Args:
            rows: an array of positions, an array of booleans or a slice.
        """
        return replace(self, codes=self.codes[rows])

    def extended(self, count: int) -> Self:
        """Return the column with so many further samples, which have no value."""
        more = np.full(count, -1)
        return replace(self, codes=np.concatenate([self.codes, more]))


@dataclass(frozen=True)
class Samples:
    """Inputs and targets in memory.

    The model sees x * scale + shift, which is computed when a batch is drawn: images
    that are stored as uint8 take a quarter of the memory of float32.

    Attributes:
        x: [n, ...] uint8 or float32; int64 are tokens, which are not scaled.
        y: the targets. Classes are int64 from 0, [n], or [n, L] for L of them per
            sample; numbers to predict are float32, [n], or [n, K] for K per sample.
        scale: the factor of each input.
        shift: what is added to each input after scaling.
        users: [n] the number of the user who made each sample, from 0, or -1 for
            nobody; None if the dataset does not say.
        columns: what else is known of each sample, by name; no part of its input.
        augment: how images are changed at random when a local step reads them; None:
            not at all.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    scale: float = 1.0
    shift: float = 0.0
    users: NDArray[np.int64] | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    augment: Augmentation | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.y)

    @property
    def sample_bytes(self) -> int:
        """The bytes of one sample as it is stored here, with its target."""
        return self.x[:1].nbytes + self.y[:1].nbytes

    def take(self, rows: Any) -> Self:
        """Return some of the samples.

        Args:
            rows: an array of positions, an array of booleans or a slice.
        """
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            users=None if self.users is None else self.users[rows],
            columns={name: column.take(rows) for name, column in self.columns.items()},
        )


@dataclass(frozen=True)
class Features:
    """How the features [n, D] of a table became inputs, which a kept model repeats.

    Attributes:
        names: [D] the features' names, in the order of the inputs; empty: they have none.
        mean: [D] what was subtracted from each; empty: they are not standardised.
        std: [D] what each was then divided by; empty: they are not standardised.
    """

    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def standardised(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return features [n, D] as inputs; float32 if they are standardised."""
        if self.mean:
            x = ((x - np.array(self.mean)) / np.array(self.std)).astype(np.float32)
        return x


@dataclass(frozen=True)
class Dataset:
    """A training set and a test set with targets of the same kind.

    Attributes:
        name: the dataset's name, for messages.
        train: the training samples, which are spread over the clients and the server.
        test: the test samples, on which all models are evaluated.
        num_classes: the number of classes; labels are 0 to num_classes - 1. It is 0 if
            the targets are numbers.
        names: the names of the classes, or none if they are not known.
        outside: how many of the last training samples were appended for the server,
            which alone may hold them.
        features: how the features of a table became inputs.
        targets: the names of the columns of the target, or none if it has none.
        class_type: the type in which the user gave the classes, which `names` has as
            text: `str`, `bool`, `int64` or `float64`.
    """

    name: str
    train: Samples
    test: Samples
    num_classes: int
    names: tuple[str, ...] = ()
    outside: int = 0
    features: Features = Features()
    targets: tuple[str, ...] = ()
    class_type: str = "str"

    @property
    def has_labels(self) -> bool:
        """Whether each sample has one class, by which samples can be spread."""
        return self.num_classes > 0 and self.train.y.ndim == 1


class Split:
    """Which training samples each client and the server hold, and which nobody trains on.

    Attributes:
        clients: the indices of each client's samples. It reads like a list of arrays,
            but is one array or a function of the client
            (`raysafl.core.client_indices`).
        server: the indices of the server's samples.
        shared: how many of each client's samples are copies of the server's, which the
            server sends it. They are its last ones.
        tests: the indices of each client's own test samples, which are training
            samples that nobody trains on; None if no such samples are held out.
        validation: the indices of the training samples that are held back to judge
            models by. Neither a client nor the server holds one of them.
    """

    def __init__(
        self,
        clients: Sequence[NDArray[np.int64]],
        server: NDArray[np.int64],
        shared: int = 0,
        tests: ClientIndices | None = None,
        validation: NDArray[np.int64] | None = None,
    ) -> None:
        self.clients = as_client_indices(clients)
        self.server = server
        self.shared = shared
        self.tests = tests
        self.validation = np.empty(0, np.int64) if validation is None else validation

    def of(self, client: int) -> NDArray[np.int64]:
        """Return the indices of a client's samples, of SERVER's or of EVERYONE's."""
        if client >= 0:
            return self.clients.samples_of(client)
        return self.server if client == SERVER else self.clients.concatenated()

    def size(self, client: int) -> int:
        """Return how many samples a client, SERVER or EVERYONE holds."""
        if client == EVERYONE:
            return int(self.clients.sizes.sum())
        return len(self.server) if client == SERVER else int(self.clients.sizes[client])


class FederatedData(Component):
    """The data of a run: a dataset, and how it is spread over clients and server.

    This is the interface that the rest of the package knows; `raysafl.data.Federation`
    implements it.
    """

    abstract: ClassVar[bool] = True
    clients: int = Field(default=10, gt=0, description="Number of clients N.")

    @property
    @abstractmethod
    def has_server_data(self) -> bool:
        """Whether the server holds samples of its own."""

    def owners(self, samples: Samples) -> NDArray[np.int64] | None:
        """Return the number of whose each sample is, -1 for nobody's; None if not known."""
        return samples.users

    @property
    def has_validation(self) -> bool:
        """Whether `split` holds training samples back, on which models are evaluated."""
        return False

    @property
    @abstractmethod
    def source_key(self) -> str:
        """A text; if two objects have the same, their `load` gives equal datasets."""

    @abstractmethod
    def load(self) -> Dataset:
        """Read the dataset into memory.

        Raises:
            ValueError: files are missing; the message names them and their folder.
        """

    def split_seed(self, seed: int) -> int:
        """Return the seed that determines the split of a replicate.

        Replicates with equal values share one split.

        Args:
            seed: the replicate's seed.
        """
        return seed

    @abstractmethod
    def split(self, dataset: Dataset, seed: int) -> Split:
        """Spread the training set over the clients and the server.

        Args:
            dataset: what `load` returned.
            seed: the replicate's seed.

        Raises:
            ValueError: the dataset has too few samples or classes for this split.
        """

    @property
    def splitter(self) -> str:
        """The name of the method that says who holds which samples, for messages."""
        return method_name(self, FederatedData, "split")

    def client_names(self, dataset: Dataset, split: Split) -> tuple[str, ...]:
        """Return the name of each client, or nothing if clients have none.

        Args:
            dataset: what `load` returned.
            split: what `split` returned.
        """
        return ()


class Model(Component):
    """A recipe for an `nn.Module`: the base class of all models.

    To bring a model of your own, define a subclass with `build` in your own file; see
    `raysafl.models` for an example. Buffers that training changes, such as BatchNorm's
    running statistics, and random layers other than `nn.Dropout` are refused.

    Parameters that `build` returns with `requires_grad=False` are frozen, for example
    those of a pre-trained backbone, and so are buffers, for example a causal mask: they
    are used as they are, and neither trained nor sent nor counted as traffic. All
    replicates share them. If they are drawn at random, all runs of the same model share
    them too; a field of yours that `build` takes as their seed gives others.
    """

    abstract: ClassVar[bool] = True
    _made_by: ClassVar[str] = (
        ", a class whose method `build(self, input_shape, num_classes)` makes a network "
        "(docs/one_page.md shows how to write one)"
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        default="float32",
        description="Type in which layers compute. bfloat16, where torch's autocast "
        "uses it, makes convolutions about twice as fast on a CPU that has "
        "instructions for it; tf32 lets a GPU round the factors of products and "
        "convolutions to 10 bits, and is float32 on a CPU. Parameters, gradients and "
        "averages stay float32.",
    )

    def outputs_for(self, num_classes: int) -> int:
        """Return the number of outputs that a module has which `build` makes.

        A network may have more of them than there are classes. The further ones stand
        for classes of which there are no samples.
        """
        return num_classes

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
        """Build a module from inputs [B, *input_shape] to outputs [B, num_classes].

        It is called once per replicate, with torch's generator seeded, to draw the
        initial parameters that are trained, and with another seed, which is always the
        same, for the module that computes. Of that one, the frozen parameters are used.

        Args:
            input_shape: the shape of one sample, such as (1, 28, 28); (length,) for
                text.
            num_classes: the number of outputs: of classes, whose outputs are logits; of
                characters; or of the numbers that are to be predicted for a sample.

        Raises:
            ValueError: the model does not fit data of this shape.
        """
