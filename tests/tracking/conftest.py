"""A sweep beside an empty database of MLflow, and what that holds."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.tracked import View, sweep, uri_of

from raysafl.storage.store import Store
from raysafl.tracking.client import connect, default_uri, disconnect


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making one takes seconds, copying it none."""
    folder = tmp_path_factory.mktemp("empty")
    disconnect(connect(default_uri(folder)))
    return folder / "mlflow.db"


@pytest.fixture
def store(tmp_path: Path, empty_database: Path) -> Store:
    """A sweep of two runs, of which nothing has run, beside an empty database."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return sweep(tmp_path / "demo")


@pytest.fixture
def view(store: Store) -> Iterator[Callable[[], View]]:
    """Look into the store's database; the connections are closed at the end."""
    views: list[View] = []

    def look() -> View:
        views.append(View(uri_of(store)))
        return views[-1]

    yield look
    for made in views:
        disconnect(made.client)
