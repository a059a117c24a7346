"""`raysafl.load_model`: a kept model as a module of torch that takes new data."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from raysafl.core.problem import Features, Model
from raysafl.core.text import nearest
from raysafl.kept.content import FEATURES, FROZEN, KeptModels, owned_by, read_models
from raysafl.kept.loaded import LoadedModel
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.paths import Location, parse_location
from raysafl.storage.store import Store

# A sweep's runs are named in a message if they are not more.
MOST_NAMED = 20


def load_model(
    folder: str | Location,
    run: Run | str | Mapping[str, Any],
    replicate: int = 0,
) -> LoadedModel:
    """Return the model that a run kept (`Run.keep`), with its weights, in eval mode.

    Its method `predict` takes raw rows of a table, or an array, and returns classes by
    name, or numbers in the target's units. Called itself, it takes inputs as the model saw
    them in training, which its method `inputs` makes, and returns the outputs of its
    `module`, which the run's `Model.build` makes. It computes in float32, also where the
    run trained with bfloat16 or, on a GPU, with TF32.

    Args:
        folder: The sweep's folder or URI.
        run: The run: itself, its id, or labels that it alone has.
        replicate: The number of the replicate, from 0.

    Returns:
        The model, a module on the CPU.

    Raises:
        ValueError: There is no such run, or it kept no model of this replicate, or the
            file is missing or damaged, or the class of the model is not known here.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import raysafl as fl
        >>> from raysafl.quickstart import BASE
        >>> run = BASE.replace(rounds=2, keep="last")
        >>> folder = f"{tempfile.mkdtemp()}/kept"
        >>> sweep = fl.Sweep("kept", [run])
        >>> runner = fl.Runner(sweep, folder, executor="here", track="none", quiet=True)
        >>> runner.run().ok
        True
        >>> model = fl.load_model(folder, run)
        >>> model(torch.zeros(1, 1, 8, 8)).shape
        torch.Size([1, 10])
        >>> images = run.data.load().test.x[:3]
        >>> images.dtype, model.predict(images).tolist()
        (dtype('uint8'), ['7', '6', '3'])
    """
    store = Store(parse_location(folder))
    run_id = _run_id(store, run)
    entry = store.read(run_id).ledger.get(run_id)
    if entry is None:
        raise ValueError(_why_unknown(store, run_id))
    content = _bytes_of_models(store, run_id, entry)
    try:
        return model_in(content, replicate)
    except ValueError as error:
        raise ValueError(f"{store.path}, run {run_id}: {error}") from error


def model_in(content: bytes, replicate: int | None = None) -> LoadedModel:
    """Return a replicate's model from the content of a file of kept models.

    Args:
        content: What the file holds.
        replicate: The number of the replicate; None: the first that has a model.

    Raises:
        ValueError: The file is damaged or has no such replicate, or the model's class
            is not known here or builds other parameters.
    """
    about, tensors = read_models(content)
    if replicate is None:
        replicate = about.replicates[0].replicate
    if replicate not in [kept.replicate for kept in about.replicates]:
        raise ValueError(_why_missing(about, replicate))
    module = _built(about)
    values = owned_by(tensors, FROZEN, str(replicate))
    parameters = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    stored = {name: tuple(value.shape) for name, value in values.items()}
    if shapes != stored:
        different = sorted(
            name
            for name in shapes.keys() | stored.keys()
            if shapes.get(name) != stored.get(name)
        )
        raise ValueError(
            f"the model {about.run['model']['kind']} builds other parameters than those "
            f"that were kept ({', '.join(different)}), so its code has changed since; "
            "use the code with which the run was made"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
    scales = {k: tuple(v.tolist()) for k, v in owned_by(tensors, FEATURES).items()}
    return LoadedModel(module, about, Features(about.features, **scales)).eval()


def _built(about: KeptModels) -> nn.Module:
    """Build the module of the run's recipe, whose parameters are then replaced."""
    recipe = about.run["model"]
    if recipe["kind"] not in Model.kinds():
        raise ValueError(
            f"the class of the model, {recipe['kind']}, is not known here; import the "
            "file that defines it first, or define it again. The known models are: "
            f"{', '.join(sorted(Model.kinds()))}"
        )
    model = Model.from_json(json.dumps(recipe))
    with torch.random.fork_rng(devices=[]):
        return model.build(about.input_shape, about.num_outputs)


def _run_id(store: Store, run: Run | str | Mapping[str, Any]) -> str:
    """Return the id of the run that is meant."""
    if isinstance(run, Run):
        return run.id
    if isinstance(run, str):
        return run
    if not isinstance(run, Mapping):
        raise ValueError(
            f"a run is given as itself, by its id or by its labels, not as {run!r}; labels are "
            f"a mapping from {' and '.join(store.manifest().axes) or 'an axis'}"
        )
    found = store.manifest().select({axis: str(v) for axis, v in run.items()})
    if len(found) != 1:
        given = ", ".join(f"{axis}={value}" for axis, value in run.items())
        raise ValueError(
            f"{len(found)} runs of {store.path} have the labels {given or '(none)'}; "
            "give labels that one run alone has, or its id"
        )
    return found[0]


def _why_unknown(store: Store, run_id: str) -> str:
    """Say that a run has not ended, or that the folder does not have it."""
    manifest = store.file("manifest.json")
    labels = store.manifest().labels() if manifest.is_file() else {}
    if run_id in labels:
        return (
            f"run {run_id} of {store.path} has not ended; models are written when all rounds "
            "of a run are over. `raysafl run` goes on with it"
        )
    known = {*labels, *store.ledger()}
    if not known:
        return f"{store.path} holds no runs, so there is no run {run_id}"
    # A large sweep's ids would be a wall of text.
    hint = nearest(run_id, known) if len(known) <= MOST_NAMED else ""
    return (
        f"{store.path} has no run {run_id}{': ' if hint else ''}{hint}. `raysafl results` "
        "shows the runs with their ids and labels, which can be given in place of an "
        "id: run={'axis': label}"
    )


def _bytes_of_models(store: Store, run_id: str, entry: LedgerEntry) -> bytes:
    """Read the file of models of a run, which has been found to be as it was written."""
    where = f"run {run_id} of {store.path}"
    if entry.status is Status.DAMAGED:
        raise ValueError(f"{where} is damaged: {entry.reason}")
    if not entry.config.get("keep"):
        raise ValueError(
            f"{where} kept no model, because its field `keep` is None. In the experiment file "
            "write keep='last', 'best' or 'best_val' into fl.Run(...) and run the sweep "
            "again; it then has new runs, which are computed from their first round"
        )
    if not entry.kept:
        why = {
            Status.FINISHED: "the number by which it chooses was missing in every round",
            Status.STOPPED: f"it was stopped early ({entry.reason})",
            Status.FAILED: f"it failed ({entry.reason})",
        }.get(entry.status, f"all of its replicates diverged ({entry.reason})")
        raise ValueError(f"{where} kept no model, because {why}")
    return store.model(run_id).read_bytes()


def _why_missing(about: KeptModels, replicate: int) -> str:
    """Say why there is no model of a replicate."""
    count = about.run.get("replicates", 1)
    if not 0 <= replicate < count:
        return f"there is no replicate {replicate}; the run has 0 to {count - 1}"
    return (
        f"no model of replicate {replicate} was kept, because it diverged before there "
        f"was one; those of replicates {[r.replicate for r in about.replicates]} were"
    )
