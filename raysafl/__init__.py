"""raysafl: sweeps of server-assisted federated learning, and of clients that do not come.

Names are imported when first used (`__init__.pyi` says from where), so that a worker or
a short command does not pay for all of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
