"""Where work is done: in this process, or on Ray actors with the same results."""

from raysafl.runtime.client_actor import Clients
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.in_process import Worker
from raysafl.runtime.on_actors import OnActors
from raysafl.runtime.population import Population

__all__ = ["Clients", "Hardware", "OnActors", "Population", "Worker"]
