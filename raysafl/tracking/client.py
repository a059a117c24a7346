"""Where MLflow is, and a client for it that is quiet and does not wait for long."""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from filelock import FileLock

from raysafl.core.needs import need
from raysafl.storage.redaction import redacted, refuse_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

# These variables are set unless the user has set them. MLflow's own seven retries would
# wait four minutes for a server that is down.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

# The tag of our experiments and runs that holds the name of the sweep.
SWEEP = "raysafl.sweep"


def default_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI`, or the database in the folder that holds the sweeps.

    A database cannot lie in an object store: for `s3://a/b` it lies in `results/s3/a/b`
    below the current folder.

    Raises:
        ValueError: the variable's URI holds a password.
    """
    file = root.resolve() / "mlflow.db"
    given = os.environ.get("MLFLOW_TRACKING_URI")
    return refuse_password(given) if given else f"sqlite:///{file}"


def database(uri: str) -> Path | None:
    """Return the file of an SQLite URI; None for the URI of a server."""
    prefix, _, path = uri.partition(":///")
    # A query holds options of SQLite, such as the password of an encrypted file.
    file = path.partition("?")[0]
    return Path(file).resolve() if prefix.startswith("sqlite") and file else None


def artifacts(uri: str) -> str | None:
    """Return where artifacts go: beside an SQLite file; None leaves it to the server."""
    file = database(uri)
    return (file.parent / "mlartifacts").as_uri() if file else None


def reason(error: Exception) -> str:
    """Return the first line of an error, shortened and without secrets."""
    # They are hidden first: a half of one would not be recognized.
    lines = redacted(str(error)).splitlines()
    line = next(iter(lines), "") or type(error).__name__
    return line if len(line) <= 200 else f"{line[:200]}..."


def connect(uri: str) -> "MlflowClient":
    """Connect to MLflow, which is imported here because that takes two seconds.

    Raises:
        MlflowException: it does not answer.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from sqlalchemy import make_url

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def asked(uri: str) -> "MlflowClient":
        client = MlflowClient(tracking_uri=uri)
        # The first request finds out whether a server is down, or makes a database.
        client.search_experiments(max_results=1)
        return client

    with _one_at_a_time(uri):
        file = database(uri)
        if file is not None and not file.is_file():
            # MLflow can never use one of which a full disk or a kill has left a part.
            with TemporaryDirectory(prefix=".mlflow-", dir=file.parent) as folder:
                new = Path(folder, file.name)
                url = make_url(uri).set(database=str(new))
                disconnect(asked(url.render_as_string(hide_password=False)))
                new.replace(file)
        return asked(uri)


def open_experiment(client: "MlflowClient", name: str, artifacts: str | None) -> str:
    """Find or make the experiment of a name, and return MLflow's id of it.

    One that was deleted, or one of ours whose artifacts lie where the database was
    before it was moved, is renamed and deleted, and another one is made.

    Args:
        client: the client of MLflow.
        name: the name of the sweep.
        artifacts: where the experiment's artifacts must lie; None leaves it to the
            server.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        number = str(experiment.experiment_id)
        deleted = experiment.lifecycle_stage == "deleted"
        moved = artifacts not in (None, experiment.artifact_location)
        if not deleted and not (moved and SWEEP in experiment.tags):
            return number
        if deleted:
            # MLflow renames no experiment that is deleted.
            client.restore_experiment(number)
        client.rename_experiment(number, f"{name} (deleted {number})")
        client.delete_experiment(number)
    # With the first tag MLflow's page opens on the runs, and not on traces of language
    # models.
    tags = {"mlflow.experimentKind": "custom_model_development", SWEEP: name}
    return str(client.create_experiment(name, artifacts, tags))


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn what MLflow raises in the block into a ValueError of one line, without secrets.

    Raises:
        ValueError: MLflow raised an error, or is not installed; or a file cannot be used.
    """
    need("mlflow", "the logging of runs")
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    # The driver of a database may be missing, which is an ImportError.
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        # It may be a file of the results, and not of MLflow's.
        file = getattr(error, "filename", None)
        raise ValueError(
            f"{file or f'MLflow at {uri}'} cannot be used: {reason(error)}"
        ) from error


def disconnect(client: "MlflowClient") -> None:
    """Close the client's connections to SQLite.

    MLflow has no method for it, so its private store is looked up; without it nothing
    happens.
    """
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    engine = getattr(store, "engine", None)
    if engine is not None:
        engine.dispose()


def analyse(uri: str) -> None:
    """Let an SQLite database count its rows, by which it plans its searches.

    Without these counts, MLflow's page compares every run with every other to sort
    them by a metric: of 10,000 runs that takes ten seconds, with them one. A database
    that is not SQLite's does this itself. One that is locked stays as it is.
    """
    file = database(uri)
    if file is None or not file.is_file():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as opened, opened:
        # Of each index, this many entries are looked at.
        opened.execute("PRAGMA analysis_limit = 1000")
        opened.execute("ANALYZE")


@contextmanager
def _one_at_a_time(uri: str) -> Iterator[None]:
    """Let one process at a time open a database.

    Two processes that make the tables of a new one at the same time would both fail.
    """
    file = database(uri)
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock"), timeout=60):
        yield
