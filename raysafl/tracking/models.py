"""A run's kept models as an artifact that `mlflow.pyfunc.load_model` can load."""

import platform

from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.store import Store

# Files of models up to this size are logged.
MOST_BYTES = 100_000_000
# The module that MLflow imports to load the artifact.
LOADER = "raysafl.kept.pyfunc"
FILE = "model.safetensors"


def model_files(store: Store, run_id: str, entry: LedgerEntry) -> dict[str, bytes]:
    """Return the files of the artifact `model`; none without models, or if they are large."""
    too_large = (entry.kept_bytes or 0) > MOST_BYTES
    if not entry.kept or too_large or entry.status is Status.DAMAGED:
        return {}
    # MLflow and torch take seconds to import, which runs without models need not pay for.
    # MLflow's `pyfunc.add_to_model` does the same, and importing that raises warnings.
    from mlflow.models import Model

    from raysafl.kept.pyfunc import signature_of

    content = store.model(run_id).read_bytes()
    model = Model(signature=signature_of(content))
    model.add_flavor(
        "python_function",
        loader_module=LOADER,
        data=FILE,
        config={"replicate": None},
        python_version=platform.python_version(),
    )
    return {"model/MLmodel": model.to_yaml().encode(), f"model/{FILE}": content}
