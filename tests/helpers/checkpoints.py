"""The states of a whole run as the content of a file, and back."""

from raysafl.simulation import checkpoint
from raysafl.simulation.simulation import Simulation


def dump(simulation: Simulation) -> bytes:
    """The states of all replicates, by the ids of their cells."""
    cells = zip(simulation.run.cell_ids, simulation.replicates, strict=True)
    return checkpoint.dump({cell: checkpoint.save(own) for cell, own in cells})


def restore(simulation: Simulation, content: bytes) -> None:
    """Let a simulation of the same run go on from there."""
    saved = checkpoint.load(content, simulation.run.cell_ids)
    for cell, own in zip(simulation.run.cell_ids, simulation.replicates, strict=True):
        checkpoint.restore(own, saved[cell])
