"""raysafl: sweeps of server-assisted federated learning under partial participation.

The names of a first sweep stand here, all others in the namespaces `algorithms`, `data`,
`models`, `objectives`, `participation` and `training`. They are imported when first used
(`__init__.pyi` says from where), so that a worker or a short command does not pay for all.
"""

import os

import lazy_loader

# torch multiplies matrices by Intel's MKL. Unless it is told otherwise, the last bits of a product
# may depend on where its operands are in memory. It reads this at its first product.
os.environ.setdefault("MKL_CBWR", "AUTO")
# MKL keeps the rearranged copies of matrices that it makes, up to so many megabytes. Without a
# limit they take several times the memory of a large model.
os.environ.setdefault("MKL_FAST_MEMORY_LIMIT", "8")

_lazy, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _lazy(name)
    except AttributeError:
        # A module that fails while it is imported has its own message.
        if name in __all__ or name.startswith("__"):
            raise
        from raysafl.core.component import nearest_name

        raise AttributeError(nearest_name(name)) from None
