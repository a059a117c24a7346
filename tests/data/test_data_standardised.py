"""Standardised inputs of image sources, by hand, and through every engine."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.small_data import png
from helpers.tasks import Task, Trainer

from raysafl import Digits, Federation, LocalTraining, Logistic, Model
from raysafl.algorithms import Key
from raysafl.data import (
    Dataset,
    ImageSource,
    Mnist,
    OtherDatasetServer,
    ParquetImages,
    Samples,
    Source,
)
from raysafl.models import FlatModel
from raysafl.training.inputs import Inputs

PAIR = (0.1307, 0.3081)
# As inputs from 0 to 1 these pixels are 0, 0.2, 0.4 and 1.
TRAIN = [0, 51, 102, 255]
MEAN = 0.4
STD = math.sqrt((0.16 + 0.04 + 0.0 + 0.36) / 4)


class Shades(ImageSource):
    """Two training images of two pixels, and one test image, in two classes."""

    pixels: list[int] = TRAIN

    def read(self) -> Dataset:
        train = np.array(self.pixels, np.uint8).reshape(2, 1, 1, 2)
        test = np.array([[[[255, 0]]]], np.uint8)
        return Dataset(
            "shades",
            Samples(train, np.array([0, 1]), 1 / 255),
            Samples(test, np.array([0]), 1 / 255),
            2,
            ("a", "b"),
        )


def inputs(samples: Samples) -> list[float]:
    """What a model sees, all images after one another."""
    x, _ = Inputs(samples, torch.device("cpu")).at(torch.arange(len(samples)))
    assert x.dtype == torch.float32 and samples.x.dtype == np.uint8
    return [float(value) for value in x.flatten()]


def test_true_takes_mean_and_deviation_of_the_training_images_for_both_parts() -> None:
    dataset = Shades(standardise=True).load()
    expected = [(v - MEAN) / STD for v in (0, 0.2, 0.4, 1)]
    assert inputs(dataset.train) == pytest.approx(expected, rel=1e-6)
    assert inputs(dataset.test) == pytest.approx(
        [(1 - MEAN) / STD, (0 - MEAN) / STD], rel=1e-6
    )


def test_a_pair_is_taken_as_given() -> None:
    expected = [(v - 0.1307) / 0.3081 for v in (0, 0.2, 0.4, 1)]
    assert inputs(Shades(standardise=PAIR).load().train) == pytest.approx(expected)


def test_statistics_are_those_of_many_images_in_blocks() -> None:
    train = Digits().load().train
    seen = train.x.astype(np.float64) / 16
    scaled = Digits(standardise=True).load().train
    assert scaled.scale == pytest.approx(1 / 16 / seen.std(), rel=1e-12)
    assert scaled.shift == pytest.approx(-seen.mean() / seen.std(), rel=1e-12)


def test_those_of_mnist_are_the_usual_ones(real_data: Path) -> None:
    train = Mnist(standardise=True).load().train
    std = 1 / 255 / train.scale
    assert (round(-train.shift * std, 4), round(std, 4)) == PAIR


def test_parquet_images_are_standardised_from_low_to_high(tmp_path: Path) -> None:
    images = [png(pixels[0]) for pixels in Shades().load().train.x]
    for part in ("train", "test"):
        table = pa.table({"image": images, "label": [0, 1]})
        pq.write_table(table, tmp_path / f"{part}.parquet")
    source = ParquetImages(path=str(tmp_path), low=-1, high=1, standardise=(0.5, 2))
    expected = [(v - 0.5) / 2 for v in (-1, -0.6, -0.2, 1)]
    assert inputs(source.load().train) == pytest.approx(expected)
    for_any_range = inputs(source.replace(standardise=True).load().train)
    assert for_any_range == pytest.approx(inputs(Shades(standardise=True).load().train))


def test_the_servers_own_images_are_scaled_as_the_runs_dataset() -> None:
    classes = [0, 1, *[None] * 8]
    server = OtherDatasetServer(dataset=Digits(), n0=2, classes=classes)
    plain = Shades(standardise=True).load().train
    joined = Federation(
        dataset=Shades(standardise=True), clients=1, server=server
    ).load()
    assert joined.outside >= 2
    assert (joined.train.scale, joined.train.shift) == (plain.scale, plain.shift)
    brightest = max(inputs(joined.train))
    assert brightest == pytest.approx((1 - MEAN) / STD, rel=1e-6)


@pytest.mark.parametrize(
    "value",
    [
        *(0, 1, None, "12", 0.3081, (0.1,), (0.1, 0.2, 0.3)),
        *((0.1, 0.0), (0.1, -0.3), (0.1, math.inf), (math.nan, 0.3), [[0.1], [0.3]]),
    ],
    ids=repr,
)
def test_what_is_no_mean_and_deviation_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Mnist: standardise\.bool: "):
        Mnist(standardise=value)


def test_run_ids_without_it_differ_from_those_with_it() -> None:
    for value, text in ((False, "false"), (True, "true"), (PAIR, "[0.1307,0.3081]")):
        source = Mnist(standardise=value)
        assert f'"standardise":{text}' in source.to_json()
        assert Source.from_json(source.to_json()) == source


def trained(engine: str, dataset: Dataset) -> torch.Tensor:
    """Return what two clients change in a linear model in a few steps."""
    model: Model = Logistic(zero_init=False)
    flat = FlatModel(model, dataset.train.x.shape[1:], dataset.num_classes)
    held = [np.arange(40), np.arange(40, 47)]
    trainer = Trainer(flat, dataset, lambda _, client: held[client], engine=engine)
    local = LocalTraining(lr=0.1, batch_size=16, epochs=2)
    w_P = flat.init(Key(1))
    return trainer.train(
        [Task(0, i, w_P, local, 0, 2, 1, None, 0.0) for i in (0, 1)]
    ).delta_MP


@pytest.mark.parametrize("engine", ["linear", "fused", "vmap"])
def test_every_engine_trains_on_the_same_standardised_inputs(engine: str) -> None:
    dataset = Digits(standardise=True).load()
    found, expected = trained(engine, dataset), trained("loop", dataset)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)

    # The same inputs, stored as numbers that need no scaling.
    x = (dataset.train.x * dataset.train.scale + dataset.train.shift).astype(np.float32)
    stored = Dataset("stored", *[Samples(x, dataset.train.y)] * 2, dataset.num_classes)
    torch.testing.assert_close(found, trained("loop", stored), rtol=2e-5, atol=2e-6)
