"""Hugging Face's library `datasets`: what it reads becomes the same data as arrays and tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import raysafl as fl

datasets = pytest.importorskip("datasets", reason="needs raysafl[datasets]")

NAMES = ["cat", "dog", "fox"]
LABELS = [0, 1, 2, 0, 1, 2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the library writes beside the data goes to a folder of the test's own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def pixels(count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 4, 5), dtype=np.uint8)


def images(count: int, seed: int, **columns: Any) -> Any:
    """A dataset of grey images in the classes `NAMES`, each by one of two artists."""
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "kind": datasets.ClassLabel(names=NAMES),
            "artist": datasets.Value("string"),
        }
    )
    rows = {
        "picture": [Image.fromarray(image) for image in pixels(count, seed)],
        "kind": LABELS[:count],
        "artist": [f"a{i % 2}" for i in range(count)],
    }
    return datasets.Dataset.from_dict({**rows, **columns}, features)


def pictures() -> Any:
    return datasets.DatasetDict(train=images(6, 1), test=images(3, 2))


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        fl.from_datasets(*args, **options)
    return str(caught.value)


def test_images_are_the_same_run_as_their_arrays() -> None:
    expected = fl.from_arrays(
        pixels(6, 1)[:, None],
        LABELS,
        test=(pixels(3, 2)[:, None], LABELS[:3], {"artist": ["a0", "a1", "a0"]}),
        clients={"artist": ["a0", "a1"] * 3},
        names=NAMES,
    )
    assert fl.from_datasets(pictures(), client="artist") == expected
    assert expected.load().train.columns["artist"].values == ("a0", "a1")


def test_a_table_is_the_same_run_as_its_data_frame() -> None:
    columns = {"a": [1.5, 2.0, 3.0, 4.0], "label": ["x", "y", "x", "y"]}
    part = datasets.Dataset.from_dict(columns)
    frame = part.to_pandas()
    expected = fl.from_pandas(frame, label="label", test=frame, standardise=True)
    both = datasets.DatasetDict(train=part, test=part)
    assert fl.from_datasets(both, standardise=True) == expected
    alone = fl.from_datasets(part, test_share=0.25, seed=3)
    assert alone == fl.from_pandas(frame, label="label", test_share=0.25, seed=3)


def test_a_folder_of_images_for_each_class_is_read(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("test", 2)):
        for seed, name in enumerate(NAMES):
            folder = tmp_path / "animals" / split / name
            folder.mkdir(parents=True)
            for i, image in enumerate(pixels(count, seed)):
                Image.fromarray(image).save(folder / f"{i}.png")
    dataset = fl.from_datasets(tmp_path / "animals").load()
    assert dataset.names == tuple(NAMES)
    assert np.bincount(dataset.train.y).tolist() == [4, 4, 4]
    for seed in range(3):
        mine = dataset.test.x[dataset.test.y == seed]
        assert np.array_equal(mine, pixels(2, seed)[:, None])


def test_parquet_in_folders_of_folders_is_the_same_run(tmp_path: Path) -> None:
    for split, part in pictures().items():
        folder = tmp_path / "one" / "en" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        part.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    assert fl.from_datasets(tmp_path / "one") == fl.from_datasets(pictures())


def test_what_is_missing_or_unclear_is_named(tmp_path: Path) -> None:
    both = pictures()
    assert "no split 'validation' (it has: train, test)" in refused(
        both, test="validation"
    )
    assert "no split 'test' (it has: train)" in refused(both["train"])
    assert "no column 'artst' (it has: picture, kind" in refused(both, client="artst")
    assert "no column 'label' (it has: picture, other, artist)" in refused(
        both.cast_column("kind", datasets.Value("int64")).rename_column("kind", "other")
    )
    uneven = images(2, 1, picture=[Image.new("L", (4, 4)), Image.new("L", (4, 5))])
    assert "have the shapes (1, 4, 4), (1, 5, 4)" in refused(uneven, test_share=0.5)
    streamed = both["train"].to_iterable_dataset()
    assert "which is not streamed" in refused(streamed, test_share=0.5)
    (tmp_path / "empty").mkdir()
    assert "cannot be read by the library datasets" in refused(tmp_path / "empty")
