"""Datasets that the processes of one command share: one of them decodes, all map the arrays."""

import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock

from raysafl.core.problem import Dataset
from raysafl.simulation.run import Run

FOLDER = "RAYSAFL_BENCHMARKS_SHARED"


@contextmanager
def shared() -> Iterator[None]:
    """Let all processes that start inside the block share the datasets that they load."""
    with tempfile.TemporaryDirectory(prefix="benchmarks") as folder:
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER]


def load(run: Run) -> Dataset:
    """Load a run's dataset; inside a block `shared` only the first process decodes it."""
    if FOLDER not in os.environ:
        return run.data.load()
    name = hashlib.sha256(run.data.source_key.encode()).hexdigest()
    file = Path(os.environ[FOLDER]) / name
    with FileLock(f"{file}.lock"):
        if not file.exists():
            arrays: list[pickle.PickleBuffer] = []
            rest = pickle.dumps(run.data.load(), 5, buffer_callback=arrays.append)
            for number, array in enumerate(arrays):
                file.with_suffix(f".{number:02}").write_bytes(array.raw())
            file.write_bytes(rest)
    parts = sorted(file.parent.glob(f"{name}.[0-9][0-9]"))
    # A write would change this process's own copy of a page, and no file.
    mapped = [np.memmap(part, mode="c") for part in parts]
    dataset: Dataset = pickle.loads(file.read_bytes(), buffers=mapped)
    return dataset
