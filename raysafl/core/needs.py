"""Packages that a part of raysafl needs, and that may be missing for the others.

Ray and MLflow are installed with raysafl. A machine may lack them all the same: a node with a
GPU on which nothing but training is wanted, for example.
"""

import importlib.util

# The packages that may be missing: name -> what people call it, and how to install it.
OPTIONAL = {
    "mlflow": ("MLflow", "pip install mlflow"),
    "ray": ("Ray", "pip install 'ray[tune]<2.61'"),
}


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    # What keeps a package from being imported may say so like this.
    except ImportError:
        return False


def need(package: str, what: str) -> None:
    """Check that a package is there, before it is imported.

    Args:
        package: the name of the package, one of `OPTIONAL`.
        what: what needs it, as the subject of a sentence: "`raysafl ui`".

    Raises:
        ValueError: it is not installed; the message says how to install it.
    """
    if not is_installed(package):
        name, command = OPTIONAL[package]
        raise ValueError(f"{name} is not installed, and {what} needs it: {command}")
