"""`load_model` gives the model that a run kept, and says what is wrong if it cannot."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.folders import finished
from helpers.frozen import Backbone, Masked
from helpers.made import end, save
from torch import nn

import raysafl as fl
from raysafl.kept.content import read_model
from raysafl.storage.store import Store


class Tied(fl.Model):
    """Two names for one weight, and a frozen bias that is a part of another tensor."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build an encoder, its transpose, and a head."""
        inputs = math.prod(input_shape)
        whole = torch.arange(2.0 * num_classes)
        head = nn.Linear(inputs, num_classes)
        head.bias = nn.Parameter(whole[:num_classes], requires_grad=False)
        first = nn.Linear(inputs, inputs, bias=False)
        second = nn.Linear(inputs, inputs, bias=False)
        second.weight = first.weight
        return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, head)


class RandomFeatures(fl.Model):
    """A matrix that the module draws, and that is neither a parameter nor a buffer."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build a layer on cosines of products with the matrix."""

        class Module(nn.Linear):
            matrix = torch.randn(math.prod(input_shape), 32)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward((x.flatten(1) @ self.matrix).cos())

        return Module(32, num_classes)


def folder_of(path: Path, *runs: fl.Run) -> Store:
    """A folder with these runs, which have run in this process."""
    labelled = {(i,): run for i, run in enumerate(runs)}
    return finished(fl.Sweep("kept", labelled, axes=("i",)), path)


def inputs_of(samples: fl.data.Samples) -> torch.Tensor:
    return torch.from_numpy(samples.x).float() * samples.scale + samples.shift


@pytest.mark.parametrize(
    "model",
    [
        fl.Logistic(),
        fl.MLP(hidden=[8]),
        Backbone(),
        Masked(),
        Tied(),
        RandomFeatures(),
    ],
    ids=repr,
)
def test_a_loaded_model_has_the_accuracy_of_the_round_after_which_it_was_kept(
    model: fl.Model, tiny: fl.Run, tmp_path: Path
) -> None:
    run = tiny.replace(model=model, keep="best")
    store = folder_of(tmp_path / "kept", run)
    test = run.data.load().test
    rows = store.rounds()
    for replicate in range(2):
        module = fl.load_model(store.path, run, replicate)
        assert not module.training
        with torch.no_grad():
            hits = module(inputs_of(test)).argmax(1).numpy() == test.y
        own = rows[rows["replicate"] == replicate]
        assert hits.mean() == pytest.approx(own["test_accuracy"].max())
        kept, _ = read_model(store.model(run.cell_ids[replicate]).read_bytes())
        assert kept.run == run.split()[replicate].model_dump(mode="json")
        assert kept.cell == run.cell_ids[replicate]
        assert kept.round == own.loc[own["test_accuracy"].idxmax(), "round"]


@pytest.mark.parametrize("model", [Backbone(), Masked()], ids=repr)
def test_frozen_parameters_and_buffers_are_in_the_file_and_in_the_model(
    model: fl.Model, tiny: fl.Run, tmp_path: Path
) -> None:
    run = tiny.replace(model=model, keep="last")
    store = folder_of(tmp_path / "kept", run)
    _, tensors = read_model(store.model(run.id).read_bytes())
    assert {name.partition("/")[0] for name in tensors} == {"trained", "frozen"}
    module = fl.load_model(store.path, run).module
    named = (*module.named_parameters(), *module.named_buffers())
    frozen = {name: value for name, value in named if not value.requires_grad}
    assert frozen
    assert all(torch.equal(p, tensors[f"frozen/{n}"]) for n, p in frozen.items())


def test_a_run_is_named_by_itself_by_its_id_or_by_labels(
    tiny: fl.Run, tmp_path: Path
) -> None:
    run, other = (tiny.replace(keep="last", seed=seed) for seed in (0, 5))
    store = folder_of(tmp_path / "kept", run, other)
    weights = [
        fl.load_model(where, which).module.state_dict()["1.weight"]
        for where, which in (
            (store.path, run),
            (str(store.path), run.id),
            (store.path, {"i": 0}),
        )
    ]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    with pytest.raises(
        ValueError, match=r"by its labels, not as 0; .* mapping from i$"
    ):
        fl.load_model(store.path, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"2 runs of .* have the labels"):
        fl.load_model(store.path, {})
    with pytest.raises(ValueError, match="no run has i=7"):
        fl.load_model(store.path, {"i": 7})


def test_what_cannot_be_loaded_is_said_with_what_to_do(
    tiny: fl.Run, tmp_path: Path
) -> None:
    run = tiny.replace(keep="last")
    store = folder_of(tmp_path / "kept", run, tiny)
    wrong: list[tuple[Any, int, str]] = [
        (run.id[:-1] + "x", 0, "has not ended, or the sweep has no such run"),
        (
            tiny,
            0,
            "field `keep` is None. A seed that finishes keeps a model with keep='last'",
        ),
        (run, 2, r"run \w+ of .*kept has no replicate 2: give 0 to 1"),
        (run, -1, "has no replicate -1"),
    ]
    for which, replicate, message in wrong:
        with pytest.raises(ValueError, match=message):
            fl.load_model(store.path, which, replicate)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("failed", r"it is failed \(no memory\)"),
        ("waiting", r"it is waiting \(after 1 of 4 rounds\)"),
    ],
)
def test_a_replicate_that_has_not_finished_says_why_it_has_no_model(
    status: str, message: str, tiny: fl.Run, tmp_path: Path
) -> None:
    run = tiny.replace(keep="last")
    store = Store(tmp_path / "kept")
    store.create()
    store.write_manifest(fl.Sweep("kept", [run]).manifest())
    if status == "waiting":
        save(store, run.id, [{"replicate": r, "round": 0} for r in (0, 1)])
    else:
        end(store, run.id, status=status, reason="no memory")
    with pytest.raises(ValueError, match=rf"replicate 0 of run {run.id} .*{message}"):
        fl.load_model(store.path, run)


class SecondDiverges(fl.Algorithm):
    """FedAvg whose second seed diverges."""

    def round(self, state, ids, key):  # type: ignore[no-untyped-def]
        update = yield fl.TrainMean(state.w_P, ids)
        return replace(state, w_P=state.w_P - update.delta_P / (1 - key.seed))


def test_a_replicate_that_diverged_has_no_model_and_the_others_have(
    tiny: fl.Run, tmp_path: Path
) -> None:
    run = tiny.replace(algorithm=SecondDiverges(), keep="last", seed=0)
    store = folder_of(tmp_path / "kept", run)
    with pytest.raises(ValueError, match="has no model: it is diverged"):
        fl.load_model(store.path, run, 1)
    fl.load_model(store.path, run, 0)


def test_code_that_builds_other_parameters_is_refused(
    tiny: fl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny.replace(model=Tied(), keep="last")
    store = folder_of(tmp_path / "kept", run)
    monkeypatch.setattr(Tied, "build", lambda self, shape, n: nn.Linear(64, n))
    with pytest.raises(ValueError, match="builds other parameters"):
        fl.load_model(store.path, run)


def test_of_a_missing_or_damaged_model_the_cell_is_to_be_computed_again(
    tiny: fl.Run, tmp_path: Path
) -> None:
    runs = [tiny.replace(keep="last", seed=seed) for seed in (0, 5, 9)]
    store = folder_of(tmp_path / "kept", *runs)
    file = store.model(runs[0].id)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    store.model(runs[1].cell_ids[1]).unlink()
    for run, replicate, why in ((runs[0], 0, "damaged"), (runs[1], 1, "missing")):
        with pytest.raises(ValueError, match=rf"it is waiting \(damaged: .* is {why};"):
            fl.load_model(store.path, run, replicate)
        # The run's other seed is as it was.
        fl.load_model(store.path, run, 1 - replicate)
    assert [run.status for run in store.read().runs.values()] == [
        *("waiting", "waiting", "finished")
    ]
