"""Where work is done: in this process, or on Ray actors with the same results."""

from raysafl.runtime.actors import OnActors
from raysafl.runtime.clients import Clients
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.worker import Worker

__all__ = ["Clients", "Hardware", "OnActors", "Worker"]
