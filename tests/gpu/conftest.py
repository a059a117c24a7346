"""Tests on a real GPU: `pytest -m gpu`. They need neither Ray nor MLflow nor an installation."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# What torch warns of although it computes what it should. It warns of operators that do not
# repeat their bits, too: that is an error here, as everywhere.
HARMLESS = (
    # In the thread of a first backward pass torch makes the context current by itself.
    "ignore:Attempting to run cuBLAS, but there was no current CUDA context",
    # Weights are views of one flat vector, which cuDNN copies into its own order.
    "ignore:RNN module weights are not part of single contiguous chunk of memory",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, before pytest chooses by marks."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("gpu")
            for text in HARMLESS:
                item.add_marker(pytest.mark.filterwarnings(text))


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    """Without a GPU every test here is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, and torch sees none")
