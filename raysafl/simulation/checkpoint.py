"""Save a simulation between two rounds as one safetensors file, and restore it.

The file (`raysafl.core.tensor_file`) holds the replicates' tensors by name, and everything
else as JSON. The JSON names the run by its id, so that another run,
whose tensors may have the same shapes, does not continue from it.

A file can also be put together from replicates of other runs (`assemble`), from which a
run of more replicates or more rounds begins. A replicate of it may be missing, and then
begins in round 0; or it has ended in another run, and takes part in no round.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from raysafl.core import tensor_file
from raysafl.core.algorithm import State
from raysafl.simulation.per_client import ClientHistory
from raysafl.simulation.replicate import Counts, KeptModel, Progress, Replicate
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation

# What goes into the JSON of a replicate as it is.
COPIED = (
    "round",
    "policy",
    "train_accuracy",
    "train_loss",
    "diverged",
    "best",
    "best_round",
    "stopped",
)


class Ended(NamedTuple):
    """How a replicate has ended.

    Args:
        round: The number of rounds that it took part in.
        diverged: Why it has diverged; empty if it has not.
        stopped: Why it stopped before the last round; empty if it did not.
        kept_round: The round after which the model was taken that it keeps; None if it
            keeps none.
        kept_value: The value by which this model was chosen; None if it is the last one.
    """

    round: int
    diverged: str = ""
    stopped: str = ""
    kept_round: int | None = None
    kept_value: float | None = None


class SavedReplicate(NamedTuple):
    """A replicate in a file.

    Args:
        values: JSON-like values.
        tensors: its tensors by name.
    """

    values: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    @property
    def goes_on(self) -> bool:
        """Whether there is a state from which it could go on, or it has stopped early."""
        return "ended" not in self.values or self.has_stopped

    @property
    def round(self) -> int:
        """How many rounds it has taken part in."""
        return int(self._attributes["round"])

    @property
    def has_stopped(self) -> bool:
        """Whether it has diverged, or stopped before the last round."""
        return bool(self._attributes["diverged"] or self._attributes["stopped"])

    @property
    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = self.values.get("ended", self.values)
        return found


def dump(simulation: Simulation, **extra: Any) -> bytes:
    """Return the whole state of a simulation as the content of a file.

    Args:
        simulation: The simulation.
        extra: JSON-like values that `restore` gives back.
    """
    replicates = {own.number: own.taken or _saved(own) for own in simulation.replicates}
    return assemble(simulation.run, replicates, **extra)


def assemble(run: Run, replicates: Mapping[int, SavedReplicate], **extra: Any) -> bytes:
    """Return the content of a file from which a run goes on.

    Args:
        run: The run.
        replicates: What is saved of some of its replicates, by their numbers.
        extra: JSON-like values that `restore` gives back.
    """
    content = {
        "run": run.id,
        "replicates": [
            replicates[r].values if r in replicates else None
            for r in range(run.replicates)
        ],
        "extra": extra,
    }
    tensors = {
        f"{r}/{name}": value
        for r, own in replicates.items()
        for name, value in own.tensors.items()
    }
    return tensor_file.to_bytes(content, tensors)


def mark_as_ended(
    end: Ended, parameters: Mapping[str, torch.Tensor] | None = None
) -> SavedReplicate:
    """Return what is saved of a replicate that takes part in no further round.

    Args:
        end: How it has ended.
        parameters: The parameters by name of the model that it keeps; None if it keeps
            none.
    """
    tensors = {f"kept/{name}": value for name, value in (parameters or {}).items()}
    return SavedReplicate({"ended": end._asdict()}, tensors)


def replicates_in(content: bytes) -> list[SavedReplicate | None]:
    """Return what a file holds of each replicate; None of one that begins in round 0.

    Raises:
        ValueError: The content is damaged.
    """
    try:
        saved, tensors = tensor_file.from_bytes(content)
        return [
            values and SavedReplicate(values, _own(tensors, r))
            for r, values in enumerate(saved["replicates"])
        ]
    except tensor_file.DAMAGE as error:
        raise ValueError(f"the checkpoint cannot be used: {error}") from error


def restore(simulation: Simulation, content: bytes) -> dict[str, Any]:
    """Give a simulation of the same run the state that `dump` saved.

    Args:
        simulation: A simulation of the run that was saved, before its first round.
        content: What `dump` or `assemble` returned.

    Returns:
        The `extra` that was given to `dump`.

    Raises:
        ValueError: The content is damaged or belongs to another run.
    """
    try:
        saved, tensors = tensor_file.from_bytes(content)
        if saved["run"] != simulation.run.id:
            raise ValueError(
                f"it belongs to run {saved['run']}, and this is run {simulation.run.id}"
            )
        restored = [
            _restored(
                replicate, SavedReplicate(values, _own(tensors, replicate.number))
            )
            for values, replicate in zip(
                saved["replicates"], simulation.replicates, strict=True
            )
            if values is not None
        ]
    except tensor_file.DAMAGE as error:
        raise ValueError(f"the checkpoint cannot be used: {error}") from error

    for replicate, attributes in restored:
        vars(replicate).update(attributes)
    extra: dict[str, Any] = saved["extra"]
    return extra


def _own(tensors: Mapping[str, torch.Tensor], r: int) -> dict[str, torch.Tensor]:
    """Return replicate r's tensors, by their names without its number."""
    front = f"{r}/"
    return {
        name.removeprefix(front): value
        for name, value in tensors.items()
        if name.startswith(front)
    }


def _saved(replicate: Replicate) -> SavedReplicate:
    """Return what is saved of a replicate between two rounds."""
    state = replicate.state
    tensors = {
        "w": state.w_P,
        **{f"server/{name}": value for name, value in state.server.items()},
        **{f"client/{i}": row for i, row in state.clients.items()},
        **_tensors_of(replicate.clients),
        **{
            f"moments/{i}/{v}": moment_P
            for i, own in replicate.progress.items()
            for v, moment_P in enumerate(own.moments)
        },
    }
    values = {name: getattr(replicate, name) for name in COPIED}
    values["counts"] = vars(replicate.counts)
    # A file gives its tensors in no certain order, and sums depend on their order.
    values["server"] = list(state.server)
    values["clients"] = list(state.clients)
    values["reached"] = sorted(replicate.reached)
    # A client's numbers without its moments, which are tensors.
    values["progress"] = [(i, own[:-1]) for i, own in replicate.progress.items()]
    if replicate.best_model is not None:
        tensors["best"] = replicate.best_model.w_P
        values["best_model"] = [replicate.best_model.round, replicate.best_model.value]
    return SavedReplicate(values, tensors)


def _restored(
    replicate: Replicate, saved: SavedReplicate
) -> tuple[Replicate, dict[str, Any]]:
    """Return a replicate and the attributes that it is to have.

    Raises:
        ValueError: The model trains another number of parameters.
    """
    values, tensors = saved
    if "ended" in values:
        return replicate, _attributes_of_ended(replicate, saved)
    _check_size(replicate, tensors["w"])
    attributes = {name: values[name] for name in COPIED} | {
        "state": State(
            tensors["w"],
            {name: tensors[f"server/{name}"] for name in values["server"]},
            {i: tensors[f"client/{i}"] for i in values["clients"]},
        ),
        "counts": Counts(**values["counts"]),
        "reached": set(values["reached"]),
        "clients": _history_of(tensors) if replicate.clients else None,
        "best_model": None,
        "progress": {
            i: Progress(steps, hits, seen, _moments_of(tensors, i))
            for i, (steps, hits, seen) in values["progress"]
        },
    }
    if "best_model" in values:
        round, value = values["best_model"]
        attributes["best_model"] = KeptModel(round, value, tensors["best"])
    return replicate, attributes


def _attributes_of_ended(replicate: Replicate, saved: SavedReplicate) -> dict[str, Any]:
    """Return the attributes of a replicate that has ended in another run.

    Raises:
        ValueError: It keeps a model of another number of parameters.
    """
    end = Ended(**saved.values["ended"])
    attributes: dict[str, Any] = {
        "taken": saved,
        "round": end.round,
        "diverged": end.diverged,
        "stopped": end.stopped,
    }
    if end.kept_round is not None:
        named = replicate.work.model_of(replicate.w_P).trained
        w_P = torch.cat([saved.tensors[f"kept/{name}"].reshape(-1) for name in named])
        _check_size(replicate, w_P)
        if replicate.run.kept_by:
            attributes["best_model"] = KeptModel(end.kept_round, end.kept_value, w_P)
        else:
            attributes["state"] = dataclasses.replace(replicate.state, w_P=w_P)
    return attributes


def _check_size(replicate: Replicate, w_P: torch.Tensor) -> None:
    """Refuse parameters of another number: the user may have edited the model since."""
    size = len(w_P)
    expected = len(replicate.state.w_P)
    if size != expected:
        raise ValueError(f"it holds {size} parameters, the model now trains {expected}")


def _tensors_of(history: ClientHistory | None) -> dict[str, torch.Tensor]:
    """Return what a replicate knows of its clients, as tensors by name."""
    if history is None:
        return {}
    shape = (0, len(ClientHistory.COLUMNS), len(history.participations_N))
    tables = np.stack(history.tables) if history.tables else np.empty(shape)
    return {
        "clients/participations": torch.from_numpy(history.participations_N),
        "clients/rounds": torch.tensor(history.rounds, dtype=torch.int64),
        "clients/tables": torch.from_numpy(tables),
    }


def _history_of(tensors: Mapping[str, torch.Tensor]) -> ClientHistory:
    """Return what a replicate knows of its clients, from its tensors."""
    return ClientHistory(
        participations_N=tensors["clients/participations"].numpy(),
        rounds=tensors["clients/rounds"].tolist(),
        tables=list(tensors["clients/tables"].numpy()),
    )


def _moments_of(
    tensors: Mapping[str, torch.Tensor], client: int
) -> tuple[torch.Tensor, ...]:
    """Return what a client keeps of its optimizer, none or some."""
    names = (f"moments/{client}/{v}" for v in itertools.count())
    return tuple(
        tensors[name] for name in itertools.takewhile(tensors.__contains__, names)
    )
