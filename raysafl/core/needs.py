"""Ray and MLflow are needed by a part of raysafl only, and may be missing for the others."""

import importlib.util

# The packages that may be missing: name -> what people call it, and how to install it.
OPTIONAL = {
    "ray": ("Ray", "pip install 'raysafl[ray]'"),
    "mlflow": ("MLflow", "pip install 'raysafl[mlflow]'"),
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
