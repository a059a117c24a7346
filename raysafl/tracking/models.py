"""A run's kept models as an artifact that `mlflow.pyfunc.load_model` can load."""

import platform

from raysafl.storage.store import RunResult, Store

# Files of models up to this size are logged.
MOST_BYTES = 100_000_000
# The module that MLflow imports to load the artifact.
LOADER = "raysafl.kept.pyfunc"
# The folder in the artifact with the file of each replicate.
FOLDER = "replicates"


def model_files(store: Store, run: RunResult) -> dict[str, bytes]:
    """Return the files of the artifact `model`; none without models, or if they are large."""
    cells = {r: end.cell for r, end in enumerate(run.cells) if end.kept}
    if not cells or sum(end.kept_bytes for end in run.cells) > MOST_BYTES:
        return {}
    # MLflow and torch take seconds to import, which runs without models need not pay for.
    # MLflow's `pyfunc.add_to_model` does the same, and importing that raises warnings.
    from mlflow.models import Model

    from raysafl.kept.pyfunc import signature_of

    files = {
        f"{FOLDER}/{r}.safetensors": store.model(cell).read_bytes()
        for r, cell in cells.items()
    }
    first = next(iter(files.values()))
    model = Model(signature=signature_of(first))
    model.add_flavor(
        "python_function",
        loader_module=LOADER,
        data=FOLDER,
        config={"replicate": None},
        python_version=platform.python_version(),
    )
    found = {"model/MLmodel": model.to_yaml().encode()}
    return found | {f"model/{name}": content for name, content in files.items()}
