"""Which experiment of MLflow belongs to a sweep's folder.

Sweeps of one name may lie in several folders that log to one MLflow. The file `.folder`
of each holds an id that is drawn at random once, and a tag of its experiment holds the
same id. The first experiment of a name gets the sweep's name, others get the name with
a part of the id. A folder that was copied with its id logs to the same experiment.
"""

import re
import secrets
from typing import TYPE_CHECKING

from raysafl.storage.files import atomic_write
from raysafl.storage.store import Store
from raysafl.tracking.tags import FOLDER

if TYPE_CHECKING:
    from mlflow import MlflowClient


def open_experiment(
    client: "MlflowClient", store: Store, name: str, artifacts: str | None
) -> str:
    """Find or make the experiment of a sweep's folder, and return MLflow's id of it.

    An experiment that was deleted is restored. One whose artifacts lie where the
    database was before it was moved is renamed and deleted, and another one is made.

    Args:
        client: the client of MLflow.
        store: the folder of the sweep.
        name: the name of the sweep.
        artifacts: where the experiment's artifacts must lie; None leaves it to the
            server.
    """
    from mlflow.entities import ViewType
    from mlflow.exceptions import MlflowException

    own = folder_id(store)
    for found in client.search_experiments(
        view_type=ViewType.ALL, filter_string=f"tags.`{FOLDER}` = '{own}'"
    ):
        number = str(found.experiment_id)
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(number)
        if artifacts is None or found.artifact_location == artifacts:
            return number
        client.set_experiment_tag(number, FOLDER, "moved")
        client.rename_experiment(number, f"{found.name} (moved {number})")
        client.delete_experiment(number)

    # With the first tag MLflow's page opens on the runs, and not on traces of language
    # models.
    tags = {"mlflow.experimentKind": "custom_model_development", FOLDER: own}
    try:
        return client.create_experiment(name, artifacts, tags)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_experiment(f"{name} ({own[:8]})", artifacts, tags)


def folder_id(store: Store) -> str:
    """Return the id of a sweep's folder, 32 hexadecimal digits; draw it if there is none."""
    file = store.file(".folder")
    try:
        found = file.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        found = ""
    if re.fullmatch(r"[0-9a-f]{32}", found):
        return found
    drawn = secrets.token_hex(16)
    atomic_write(file, drawn.encode())
    return drawn
