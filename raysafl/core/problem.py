"""problem."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.client_indices import pack
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
        self.clients, self.server = pack(clients), server

    def of(self, client: int) -> NDArray[np.int64]:
        """The samples of a client, of SERVER, or of EVERYONE: all clients' as one."""
        if client == EVERYONE:
            return self.clients.together()
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
    """A recipe for an `nn.Module`. Define `build` in your own file to bring your own.

    `precision="bfloat16"` computes its layers in bfloat16 where torch's autocast does so:
    about twice as fast for convolutions. Parameters, gradients and averages stay float32.
    """

    abstract: ClassVar[bool] = True
    precision: Literal["float32", "bfloat16"] = "float32"

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
        """A module from [batch, *input_shape] to logits [batch, num_classes]."""
