"""Datasets, partitions over clients, and the server's own data."""

from raysafl.core.component import tell_missing_names
from raysafl.core.problem import Column, Dataset, Samples
from raysafl.data.dirichlet import Dirichlet
from raysafl.data.federation import Federation
from raysafl.data.flower import FlowerPartitioner
from raysafl.data.image_sets import (
    EMNIST_LABELS,
    Cifar10,
    Cifar100,
    Cinic10,
    Emnist,
    FashionMnist,
    Mnist,
    Stl10,
    Svhn,
)
from raysafl.data.in_memory import InMemory
from raysafl.data.other_dataset import STL10_AS_CIFAR10, OtherDatasetServer
from raysafl.data.own_arrays import from_arrays, from_torch
from raysafl.data.own_tables import from_csv, from_pandas
from raysafl.data.parquet import ParquetImages, from_parquet
from raysafl.data.partitions import (
    ByColumn,
    ByUser,
    ClassesPerClient,
    DealtClasses,
    Iid,
    IndependentClasses,
    Overlapping,
    Partition,
    Shards,
)
from raysafl.data.server_data import (
    DrawnServer,
    FromClients,
    IidServer,
    ServerData,
    StratifiedServer,
)
from raysafl.data.sources import (
    Augmented,
    Digits,
    ImageSource,
    Source,
    Subset,
    data_root,
)
from raysafl.data.users import Femnist, Shakespeare, Synthetic
from raysafl.data.validation import Validation

__all__ = [
    "EMNIST_LABELS",
    "STL10_AS_CIFAR10",
    "Augmented",
    "ByColumn",
    "ByUser",
    "Cifar10",
    "Cifar100",
    "Cinic10",
    "ClassesPerClient",
    "Column",
    "Dataset",
    "DealtClasses",
    "Digits",
    "Dirichlet",
    "DrawnServer",
    "Emnist",
    "FashionMnist",
    "Federation",
    "Femnist",
    "FlowerPartitioner",
    "FromClients",
    "Iid",
    "IidServer",
    "ImageSource",
    "InMemory",
    "IndependentClasses",
    "Mnist",
    "OtherDatasetServer",
    "Overlapping",
    "ParquetImages",
    "Partition",
    "Samples",
    "ServerData",
    "Shakespeare",
    "Shards",
    "Source",
    "Stl10",
    "StratifiedServer",
    "Subset",
    "Svhn",
    "Synthetic",
    "Validation",
    "data_root",
    "from_arrays",
    "from_csv",
    "from_pandas",
    "from_parquet",
    "from_torch",
]
tell_missing_names(__name__)
