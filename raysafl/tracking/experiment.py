"""Which experiment of MLflow belongs to a sweep's folder.

Sweeps of one name may lie in several folders that log to one MLflow. Each folder has an
experiment of its own, whose tags hold the folder's identity
(`raysafl.storage.identity`). The first one gets the sweep's name, others get the name
with a part of the folder's id.

A folder that is renamed, or moved on its disk, keeps its experiment. A copy, which may
also be a folder that was moved to another disk or machine, gets an experiment of its
own, and the one of the original stays as it is. If the database was moved or copied
together with the folder, the folder keeps its experiment's name.
"""

from typing import TYPE_CHECKING

from raysafl.storage.identity import Identity, identity, renewed
from raysafl.storage.store import Store
from raysafl.tracking.readings import read_runs
from raysafl.tracking.tags import DIGEST, FILE, FOLDER, KIND, LOGGED, PLACE, RUN

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run


def open_experiment(
    client: "MlflowClient", store: Store, name: str, artifacts: str | None
) -> str:
    """Find or make the experiment of a sweep's folder, and return MLflow's id of it.

    Args:
        client: the client of MLflow.
        store: the folder of the sweep.
        name: the name of the sweep.
        artifacts: where the experiment's artifacts must lie; None leaves it to the
            server.
    """
    folder = identity(store)
    found = _with_id(client, folder.id)
    if found and not _is_of(found, folder, artifacts):
        # The folder is a copy of the one that the experiment belongs to.
        folder = renewed(store)
        found = None
    found = found or _of_earlier_version(client, store, name)

    if found and found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if found and artifacts and found.artifact_location != artifacts:
        _retire(client, found)
        found = None

    if found is None:
        return _create(client, name, folder, artifacts)
    for tag, value in _tags(folder).items():
        if found.tags.get(tag) != value:
            client.set_experiment_tag(found.experiment_id, tag, value)
    return str(found.experiment_id)


def _tags(folder: Identity) -> dict[str, str]:
    """Return the tags of the folder's experiment.

    The id comes last: an experiment with the id alone would count as that of a copy.
    """
    file = {FILE: folder.file} if folder.file else {}
    return {PLACE: folder.place} | file | {FOLDER: folder.id}


def _with_id(client: "MlflowClient", folder_id: str) -> "Experiment | None":
    """Return the experiment, perhaps a deleted one, that is tagged with this id."""
    from mlflow.entities import ViewType

    found = client.search_experiments(
        view_type=ViewType.ALL, filter_string=f"tags.`{FOLDER}` = '{folder_id}'"
    )
    return next(iter(found), None)


def _is_of(experiment: "Experiment", folder: Identity, artifacts: str | None) -> bool:
    """Return whether an experiment with the folder's id belongs to it, not to a copy of it."""
    tags = experiment.tags
    if tags.get(PLACE) == folder.place:
        return True
    if folder.file and tags.get(FILE) == folder.file:
        return True
    # The artifacts of an experiment lie beside the database. If they do not, the
    # database was moved or copied together with the folder.
    there = str(experiment.artifact_location)
    return artifacts is not None and there.startswith("file:") and there != artifacts


def _of_earlier_version(
    client: "MlflowClient", store: Store, name: str
) -> "Experiment | None":
    """Return the experiment that an earlier version, which set no tags, made for the folder.

    The experiment has the sweep's name. It belongs to the folder if one of its runs is
    a run of the folder, or if no run has been logged there yet.
    """
    from mlflow.entities import ViewType

    found = client.get_experiment_by_name(name)
    if found is None or FOLDER in found.tags:
        return None
    own_runs = store.begun()
    num_runs = 0
    token = None
    while token != "":
        page = client.search_runs(
            [found.experiment_id],
            f"tags.`{KIND}` = 'child'",
            run_view_type=ViewType.ALL,
            page_token=token,
        )
        own = [run for run in page if run.data.tags.get(RUN) in own_runs]
        if any(_logged_from(store, run) for run in own):
            return found
        num_runs += len(page)
        token = page.token or ""
    return None if num_runs else found


def _logged_from(store: Store, run: "Run") -> bool:
    """Return whether a run of MLflow shows a run of the folder, and not an equal one.

    Equal configurations give equal rows in every folder, but they take different times.
    """
    tags = run.data.tags
    reading = read_runs(store, [tags[RUN]], store.manifest())[tags[RUN]]
    if tags.get(DIGEST) != reading.digest(int(tags.get(LOGGED, -1))):
        return False
    if run.info.status not in ("FINISHED", "FAILED"):
        return True
    took = run.info.end_time - run.info.start_time
    return reading.ending is not None and took == reading.lasted


def _retire(client: "MlflowClient", experiment: "Experiment") -> None:
    """Rename and delete an experiment whose artifacts lie where its database was."""
    number = experiment.experiment_id
    client.set_experiment_tag(number, FOLDER, "moved")
    client.rename_experiment(number, f"{experiment.name} (moved {number})")
    client.delete_experiment(number)


def _create(
    client: "MlflowClient", name: str, folder: Identity, artifacts: str | None
) -> str:
    """Make an experiment with the sweep's name, or with a longer one if it is taken."""
    from mlflow.exceptions import MlflowException

    # With this tag MLflow's page opens on the runs, and not on traces of language
    # models.
    tags = {"mlflow.experimentKind": "custom_model_development"} | _tags(folder)
    try:
        return client.create_experiment(name, artifacts, tags)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_experiment(f"{name} ({folder.id[:8]})", artifacts, tags)
