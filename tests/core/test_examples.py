"""The examples in the docstrings of functions and classes that are no components run."""

import doctest
import importlib

import pytest

MODULES = [
    "raysafl.core.client_indices",
    "raysafl.core.component",
    "raysafl.core.randomness",
    "raysafl.core.text",
    "raysafl.storage.manifest",
    "raysafl.storage.paths",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_print_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
