"""Datasets that experiments of several papers use, and their names."""

import raysafl as fl
from raysafl.data import data_root


def cifar10():
    """Return CIFAR-10, read from Parquet files if the data folder holds them.

    The folder is the one that `RAYSAFL_DATA` names. If it has no
    `cifar10/train.parquet`, torchvision's files are used, and downloaded if they are
    missing. The two sources hold the same images but are different configurations, so
    their runs have different ids.
    """
    if (data_root() / "cifar10" / "train.parquet").is_file():
        return fl.data.ParquetImages(path="cifar10")
    return fl.data.Cifar10()


def file_part(dataset):
    """Return a dataset's name as it stands in the names of files and sweeps."""
    return dataset.lower().replace("cifar-10", "cifar10").replace("-", "_")
