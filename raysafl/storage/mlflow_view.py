"""Where MLflow shows a sweep: a small file in the sweep's folder, and addresses made of it.

MLflow numbers its experiments itself. `mlflow.json` holds the number that it gave to a
sweep's, so that the report and `raysafl ui` can link to it without asking MLflow.
"""

import json
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from raysafl.storage.paths import atomic_write
from raysafl.storage.store import Store

NAME = "mlflow.json"
# The saved view of a sweep's runs, see `raysafl.tracking.descriptions`.
VIEW_KEY = "raysafl"
# Without this, MLflow's pages open in the mode for language models.
MODE = {"workflowType": "machine_learning"}


@dataclass(frozen=True)
class MlflowView:
    """The experiment of a sweep in MLflow.

    Args:
        uri: MLflow's URI.
        experiment: MLflow's id of the sweep's experiment.
        parent: MLflow's id of the run that stands for the whole sweep.
    """

    uri: str
    experiment: str
    parent: str

    @property
    def is_served(self) -> bool:
        """Whether a server of its own shows the sweep, and no database is to be opened."""
        return self.uri.startswith(("http://", "https://"))

    @property
    def page(self) -> str:
        """The page that lists all runs with their numbers, as it follows a server's URL.

        Its charts are one click away. Beside charts, MLflow's list has no columns.
        """
        view = {"viewStateShareKey": VIEW_KEY, **MODE}
        return f"/#/experiments/{self.experiment}/runs?{urlencode(view)}"

    @property
    def report(self) -> str:
        """The page that shows the report among the sweep's artifacts."""
        run = f"/#/experiments/{self.experiment}/runs/{self.parent}"
        return f"{run}/artifacts/report.html?{urlencode(MODE)}"


def write_view(store: Store, view: MlflowView) -> None:
    """Store where MLflow shows a sweep, unless that is stored already."""
    if read_view(store) != view:
        text = json.dumps(asdict(view), indent=1)
        atomic_write(store.file(NAME), text.encode())


def read_view(store: Store) -> MlflowView | None:
    """Return where MLflow shows a sweep; None if that is not known."""
    file = store.file(NAME)
    try:
        return MlflowView(**json.loads(file.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
