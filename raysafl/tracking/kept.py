"""A run's kept models as an artifact that `mlflow.pyfunc.load_model` can load."""

import platform

from raysafl.core.text import format_bytes
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.store import Store

# Files of models up to this size are logged.
MOST_BYTES = 100_000_000
# The module that MLflow imports to load the artifact.
LOADER = "raysafl.kept.pyfunc"
FILE = "model.safetensors"


def kept_models(
    store: Store, run_id: str, ending: LedgerEntry
) -> tuple[dict[str, bytes], str]:
    """Return the files of the artifact `model`, or why there are none of models that were kept."""
    if not ending.kept or ending.status is Status.DAMAGED:
        return {}, ""
    size = ending.kept_bytes or 0
    if size > MOST_BYTES:
        return {}, (
            f"The kept models, {format_bytes(size)}, are more than "
            f"{format_bytes(MOST_BYTES)} and are only in the sweep's folder, as "
            f"models/{run_id}.safetensors."
        )
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
    files = {
        "model/MLmodel": model.to_yaml().encode(),
        f"model/{FILE}": content,
    }
    return files, ""
