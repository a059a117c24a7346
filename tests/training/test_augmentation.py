"""Random crops and flips: against padding and slicing, and what they may depend on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.gpu_program import trains_as_on_a_gpu
from helpers.tasks import Trainer, held_by
from test_trainer import DATASET, HELD, TOLERANCE, tasks
from torch import Tensor, nn

from raysafl import CNN, MLP, Digits, LocalTraining, Logistic, Model
from raysafl.core.problem import Augmentation
from raysafl.data import Augmented, Dataset, Synthetic
from raysafl.models import FlatModel
from raysafl.training.inputs import Inputs
from raysafl.training.trainer import LocalTrainer

CPU = torch.device("cpu")
SGD = LocalTraining(lr=0.05, batch_size=10, steps=5)
MOVED = replace(DATASET, train=replace(DATASET.train, augment=Augmentation(2, True)))


def trainer(
    model: Model, engine: str, dataset: Dataset = MOVED, device: str = "cpu"
) -> LocalTrainer:
    flat = FlatModel(model, (1, 8, 8), 4)
    return Trainer(flat, dataset, lambda r, client: HELD[client], device, engine)


def words(down: int, right: int, mirrored: int) -> Tensor:
    return torch.tensor([[down], [right], [mirrored]], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_an_image_is_padded_cut_out_and_mirrored(dtype: torch.dtype) -> None:
    x = (torch.arange(2 * 5 * 4).view(1, 2, 5, 4) + 1).to(dtype)
    padded = F.pad(x, (3, 3, 3, 3))
    for down in range(7):
        for right in range(7):
            part = padded[:, :, down : down + 5, right : right + 4]
            for word, expected in ((-1, part), (0, part.flip(3))):
                found = Augmentation(3, True).applied(x, words(down, right, word))
                assert torch.equal(found, expected) and found.dtype == dtype
            never = Augmentation(3, False).applied(x, words(down, right, 0))
            assert torch.equal(never, part)


def test_all_offsets_and_both_orientations_are_equally_likely() -> None:
    # One pixel is lit, in a row and a column that tell where it was moved.
    x = np.zeros((1000, 1, 9, 9), np.uint8)
    x[:, 0, 4, 3] = 1
    x[:, 0, 4, 4] = 2
    samples = replace(DATASET.train, x=x, augment=Augmentation(1, True))
    inputs = Inputs(replace(samples, y=np.zeros(1000, int), scale=1.0, shift=0.0), CPU)
    index_TB = torch.arange(1000).view(2, 500)
    seen = inputs.x_at(index_TB, torch.tensor([5, 6])).view(1000, 9, 9)
    bright = (seen == 2).flatten(1).float().argmax(1)
    is_mirrored = (seen == 1).flatten(1).float().argmax(1) > bright
    places, counts = np.unique(bright, return_counts=True)
    assert len(places) == 9 and abs(counts - 1000 / 9).max() < 40
    assert 430 < is_mirrored.sum() < 570
    again = inputs.x_at(index_TB, torch.tensor([6, 6])).view(2, 500, 9, 9)
    assert torch.equal(again[1], seen[500:]) and not torch.equal(again[0], seen[:500])


def test_a_cut_depends_on_the_sample_and_not_on_its_place_in_the_batch() -> None:
    inputs = Inputs(MOVED.train, CPU)
    seed_T = torch.tensor([8])
    x_TB = inputs.x_at(torch.tensor([[3, 9, 27]]), seed_T)
    other_TB = inputs.x_at(torch.tensor([[27, 5, 3, 3]]), seed_T)
    assert torch.equal(x_TB[0, [2, 0, 0]], other_TB[0, [0, 2, 3]])
    assert torch.equal(
        inputs.x_at(torch.tensor([[3]])), inputs.at(torch.tensor([[3]]))[0]
    )


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        (MLP(hidden=[12]), "vmap"),
        (CNN(channels=[3], hidden=8), "vmap"),
        (Logistic(zero_init=False), "linear"),
        (Logistic(zero_init=False), "fused"),
        (Logistic(zero_init=False), "auto"),
    ],
    ids=repr,
)
def test_every_engine_trains_on_the_cuts_of_the_loop(
    model: Model, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = trainer(model, "loop")
    asked = tasks(loop.model, SGD)
    expected = loop.train(asked).delta_MP
    plain = trainer(model, "loop", DATASET).train(asked).delta_MP
    assert not torch.allclose(expected, plain, **TOLERANCE)
    found = trainer(model, engine).train(asked).delta_MP
    torch.testing.assert_close(found, expected, **TOLERANCE)
    if engine in ("vmap", "linear"):
        as_gpu = trainer(model, engine)
        trains_as_on_a_gpu(as_gpu, monkeypatch)
        torch.testing.assert_close(as_gpu.train(asked).delta_MP, expected, **TOLERANCE)


class Remembering(Model):
    """Logistic regression whose gradient shows the sum of its inputs."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """One linear layer."""
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


def test_cuts_differ_with_seed_round_client_call_and_step_alone() -> None:
    local = trainer(Remembering(), "loop")
    task = tasks(local.model, SGD)[0]
    # Client 0 reads the samples of client 1, so that only its number differs.
    local.samples_of = held_by(lambda r, client: HELD[1][:10])
    once = LocalTraining(lr=0.05, batch_size=10, steps=1)
    kinds = [
        task._replace(local=once),
        task._replace(local=once, seed=9),
        task._replace(local=once, round=9),
        task._replace(local=once, client=1),
        task._replace(local=once, call=2),
    ]
    rows = local.train(kinds).delta_MP
    assert all(not torch.equal(rows[0], row) for row in rows[1:])
    assert torch.equal(local.train(kinds[::-1]).delta_MP.flip(0), rows)
    two = task._replace(local=SGD.replace(steps=2))
    assert not torch.allclose(local.train([two]).delta_MP[0], 2 * rows[0], rtol=0.01)


def test_test_images_are_augmented_once_if_that_is_asked_for() -> None:
    plain = Digits().load()
    for test in (False, True):
        source = Augmented(dataset=Digits(), padding=1, test=test)
        one, again = source.load(), source.load()
        assert np.array_equal(one.train.x, plain.train.x)
        assert one.train.augment == Augmentation(1, True) and one.test.augment is None
        assert np.array_equal(one.test.x, again.test.x)
        assert np.array_equal(one.test.x, plain.test.x) != test
        assert one.test.x.dtype == plain.test.x.dtype
    with pytest.raises(ValueError, match="Augmented is for images"):
        Augmented(dataset=Synthetic()).load()
