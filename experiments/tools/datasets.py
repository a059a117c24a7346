"""Datasets that may lie in more than one form."""

import raysafl as fl
from raysafl.data import data_root


def cifar10():
    """CIFAR-10 as Parquet if it lies in the data root, else torchvision's (with a download)."""
    if (data_root() / "cifar10" / "train.parquet").is_file():
        return fl.ParquetImages(path="cifar10")
    return fl.Cifar10()
