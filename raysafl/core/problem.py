"""problem."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.client_indices import as_client_indices
from raysafl.core.component import Component
from raysafl.core.randomness import Key as Key

SERVER = -1  # the id under which the server trains on its own data
EVERYONE = -2  # the id under which all clients' data is trained on as one: centralised SGD


@dataclass(frozen=True)
class Samples:
    """Inputs and labels in memory; integer inputs stay as they are until a batch is drawn."""

    x: NDArray[Any]  # [n, ...] uint8 or float32; int64 are tokens, which no one scales
    y: NDArray[np.int64]  # [n]
    scale: float = 1.0  # the model sees x * scale + shift
    shift: float = 0.0
    users: NDArray[np.int64] | None = None  # [n] who made each sample, from 0; -1 nobody

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A training set, a test set, and how many classes there are."""

    name: str
    train: Samples
    test: Samples
    num_classes: int
    names: tuple[str, ...] = ()  # of the classes, where they are known
    outside: int = 0  # the last so many training samples are the server's alone


class Split:
    """Which training samples each client and the server hold.

    `clients` reads like a list of arrays; a list that is given is packed into one.
    """

    def __init__(self, clients: Sequence[NDArray[np.int64]], server: NDArray[np.int64]) -> None:
        self.clients, self.server = as_client_indices(clients), server

    def of(self, client: int) -> NDArray[np.int64]:
        """The samples of a client, of SERVER, or of EVERYONE: all clients' as one."""
        if client == EVERYONE:
            return self.clients.concatenated()
        return self.server if client == SERVER else self.clients[client]

    def size(self, client: int) -> int:
        """How many these are."""
        if client == EVERYONE:
            return int(self.clients.sizes.sum())
        return len(self.server) if client == SERVER else int(self.clients.sizes[client])


class FederatedData(Component):
    """The data of a run: a dataset and how it is spread. See `raysafl.data.Federation`."""

    abstract: ClassVar[bool] = True
    clients: int = Field(default=10, gt=0)

    @property
    @abstractmethod
    def has_server_data(self) -> bool:
        """Whether the server holds samples of its own."""

    @property
    @abstractmethod
    def source_key(self) -> str:
        """Equal keys load equal datasets."""

    def tested_on(self, count: int) -> Self:
        """The same with at most so many test samples, if it can: for trying things out."""
        return self

    @abstractmethod
    def load(self) -> Dataset:
        """Read the dataset. Raises ValueError naming the folder and files that are missing."""

    def split_seed(self, seed: int) -> int:
        """What of a replicate's seed the split depends on: equal ones, equal splits."""
        return seed

    @abstractmethod
    def split(self, dataset: Dataset, seed: int) -> Split:
        """Spread the training set. Raises ValueError if it does not fit the arguments."""


class Model(Component):
    """A recipe for an `nn.Module`: the base class of all models.

    To bring a model of your own, define a subclass with `build` in your own file; see
    `raysafl.models` for an example. Buffers, such as BatchNorm's running statistics, and
    random layers other than `nn.Dropout` are refused.
    """

    abstract: ClassVar[bool] = True
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="Type in which layers compute. bfloat16, where torch's autocast uses "
        "it, makes convolutions about twice as fast on a CPU that has instructions for "
        "it; parameters, gradients and averages stay float32.",
    )

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
        """Build a module from inputs [B, *input_shape] to logits [B, num_classes].

        It is called once per replicate, with torch's generator seeded, to draw the initial
        parameters, and once more for the module that computes.

        Args:
            input_shape: the shape of one sample, such as (1, 28, 28); (length,) for text.
            num_classes: the number of classes, or of characters.

        Raises:
            ValueError: the model does not fit data of this shape.
        """
