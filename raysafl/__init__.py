"""raysafl: sweeps of server-assisted federated learning, and of clients that do not come.

Names are imported when first used (`__init__.pyi` says from where), so that a worker or
a short command does not pay for all of them.
"""

import os

import lazy_loader

# torch multiplies matrices by Intel's MKL. Unless it is told otherwise, the last bits of a product
# may depend on where its operands are in memory. It reads this at its first product.
os.environ.setdefault("MKL_CBWR", "AUTO")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
