"""What is measured on validation samples, against the same by hand."""

import numpy as np
import pytest
import torch
from helpers.evaluation import scored

from raysafl import Federation, Run, Validation
from raysafl.core.work import TEST, VALIDATION, Evaluation
from raysafl.runtime.in_process import Worker
from raysafl.runtime.population import Population
from raysafl.simulation.simulation import Simulation


@pytest.fixture
def validated(tiny: Run) -> Run:
    return tiny.replace({"data.validation": Validation(server=0.2, clients=0.1)})


def test_the_columns_of_validation_are_those_of_the_test_set(validated: Run) -> None:
    plain = validated.replace({"data.validation": None})
    assert list(plain.columns()) == ["test_accuracy", "test_loss"]
    assert list(validated.columns()) == [
        *("test_accuracy", "test_loss", "val_accuracy", "val_loss")
    ]


def test_accuracy_and_loss_on_validation_samples_are_those_by_hand(
    validated: Run,
) -> None:
    dataset = validated.data.load()
    work = Worker(validated.cells, dataset, validated.model)
    simulation = Simulation(validated, work)
    records = simulation.step()
    for replicate, record in zip(simulation.replicates, records, strict=True):
        rows = validated.data.split(dataset, replicate.seed).validation
        x = torch.from_numpy(dataset.train.x[rows]).float() * dataset.train.scale
        y = torch.from_numpy(dataset.train.y[rows])
        logits = work.trainer.model.logits(replicate.state.w_P, x)
        hits = (logits.argmax(1) == y).float().mean()
        loss = torch.nn.functional.cross_entropy(logits, y)
        assert record.metrics["val_accuracy"] == pytest.approx(hits.item())
        assert record.metrics["val_loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert record.test_accuracy != record.metrics["val_accuracy"]


def test_spans_of_validation_samples_add_up(
    validated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = validated.data.load()
    work = Worker(validated.cells, dataset, validated.model)
    w = {cell: work.init(cell) for cell in range(validated.replicates)}
    rows = [TEST, VALIDATION]
    whole = scored(work, w, rows)
    monkeypatch.setattr("raysafl.runtime.population.SPAN", 40)
    w_RP = torch.stack(list(w.values()))
    asked = Evaluation(np.array(list(w)), w_RP, [rows] * len(w))
    assert len(work.population.units([asked])) > 4
    parts = scored(work, w, rows)
    for cell in w:
        assert parts[cell] == {
            name: pytest.approx(value) for name, value in whole[cell].items()
        }


def test_cells_with_equal_validation_samples_are_evaluated_together(tiny: Run) -> None:
    held = Federation(validation=Validation(server=0.1))
    runs = [
        tiny.replace(data=tiny.data.replace(server=None)),
        tiny.replace(data=held, replicates=1),
        # Other clients, and the same validation samples.
        tiny.replace(data=held.replace(clients=8), replicates=1, seed=7),
        tiny.replace(data=held.replace(seed=1), replicates=1),
    ]
    cells = [cell for run in runs for cell in run.cells]
    population = Population(cells, held.load())
    assert population.validation_of.tolist() == [0, 0, 1, 1, 2]


def test_data_of_the_users_must_declare_their_validation_samples(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tiny.replace({"data.validation": Validation(server=0.2)})
    monkeypatch.setattr(Federation, "has_validation", False)
    with pytest.raises(ValueError, match="validation samples, but has_validation is"):
        Population(held.cells, held.data.load())
