"""Parquet in the layout of Hugging Face: what is found, what identifies it, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.refused import refused
from helpers.small_data import png

import raysafl as fl

NAMES = ["cat", "dog", "fox"]


def pixels(count: int, seed: int = 0, tail: tuple[int, ...] = ()) -> Any:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 4, 5, *tail), dtype=np.uint8)


def images_of(column: str, kind: str = "Image") -> dict[str, Any]:
    """The metadata that Hugging Face writes into the schema."""
    features = {
        column: {"_type": kind},
        "label": {"names": NAMES, "_type": "ClassLabel"},
        "writer": {"dtype": "string", "_type": "Value"},
    }
    return {"huggingface": json.dumps({"info": {"features": features}})}


def write(file: Path, images: Any, labels: Any, **columns: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": png(image), "path": f"{i}.png"} for i, image in enumerate(images)]
    table = pa.table({"img": pa.array(rows, kind), "label": labels, **columns})
    pq.write_table(table.replace_schema_metadata(images_of("img")), file)


def write_all(folder: Path, **changes: Any) -> Path:
    """Two shards of training images and one of test images, in `data/`."""
    for part, count, seed in (
        ("train-00000-of-00002", 5, 1),
        ("train-00001-of-00002", 4, 2),
        ("test-00000-of-00001", 3, 3),
    ):
        labels = [i % 2 for i in range(count)]
        writers = [f"w{i % 3}" for i in range(count)]
        file = folder / "data" / f"{part}.parquet"
        write(file, pixels(count, seed), labels, writer=writers, **changes)
    return folder


def test_shards_are_read_in_order_with_the_columns_and_names_of_the_metadata(
    tmp_path: Path,
) -> None:
    source = fl.from_parquet(write_all(tmp_path / "animals"), client="writer")
    dataset = source.load()
    expected = np.concatenate([pixels(5, 1), pixels(4, 2)])[:, None]
    assert np.array_equal(dataset.train.x, expected)
    assert np.array_equal(dataset.test.x, pixels(3, 3)[:, None])
    assert dataset.train.y.tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1]
    assert dataset.names == tuple(NAMES) and dataset.num_classes == 3
    assert source.num_classes == 3
    assert dataset.train.columns["writer"].values == ("w0", "w1", "w2")


def test_the_same_files_elsewhere_are_the_same_run_and_a_changed_image_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fl.from_parquet(write_all(tmp_path / "one"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    two = fl.from_parquet(write_all(Path("here") / "two"))
    assert one.to_json() == two.to_json() and str(tmp_path) not in one.to_json()
    file = tmp_path / "one" / "data" / "test-00000-of-00001.parquet"
    write(file, pixels(3, 4), [0, 1, 0], writer=["a"] * 3)
    assert fl.from_parquet(tmp_path / "one").digest() != one.digest()


@pytest.mark.parametrize(
    "names",
    [
        ["train.parquet", "test.parquet"],
        ["train/0000.parquet", "test/0000.parquet"],
        ["en/train-00000-of-00001-ab12cd.parquet", "en/test-00000-of-00001.parquet"],
    ],
)
def test_other_layouts_are_found(names: list[str], tmp_path: Path) -> None:
    for name, count in zip(names, (4, 2), strict=True):
        write(tmp_path / name, pixels(count), [0, 1] * (count // 2))
    dataset = fl.from_parquet(tmp_path).load()
    assert (len(dataset.train), len(dataset.test)) == (4, 2)


def test_validation_is_the_test_set_only_if_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", pixels(4), [0, 1, 0, 1])
    write(tmp_path / "validation.parquet", pixels(2), [0, 1])
    text = refused(fl.from_parquet, tmp_path)
    assert "test.parquet, or" in text
    assert "has: train.parquet, validation.parquet; give" in text
    assert len(fl.from_parquet(tmp_path, test="validation").load().test) == 2


def test_the_label_of_images_may_be_the_client_too(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", pixels(4), [0, 1, 0, 1])
    dataset = fl.from_parquet(tmp_path, client="label", test_share=0.5).load()
    assert np.array_equal(dataset.train.columns["label"].codes, dataset.train.y)


def test_images_may_be_encoded_bytes_alone(tmp_path: Path) -> None:
    images = pixels(4, tail=(3,))
    column = pa.array([png(image) for image in images])
    for part in ("train", "test"):
        table = pa.table({"img": column, "label": ["x", "y", "x", "y"]})
        pq.write_table(table, tmp_path / f"{part}.parquet")
    dataset = fl.from_parquet(tmp_path, image="img").load()
    assert np.array_equal(dataset.train.x, images.transpose(0, 3, 1, 2))
    assert dataset.names == ("x", "y")


def test_an_image_that_is_a_file_of_its_own_is_refused(tmp_path: Path) -> None:
    for form, told in (
        ([{"bytes": None, "path": "0.png"}], "not hold the bytes of an image"),
        (["0.png"], "must hold structs with 'bytes', or encoded bytes"),
    ):
        for part in ("train", "test"):
            table = pa.table({"img": form, "label": ["x"]})
            pq.write_table(table, tmp_path / f"{part}.parquet")
        text = refused(lambda: fl.from_parquet(tmp_path, image="img").load())
        assert told in text


def test_a_table_in_parquet_is_the_same_run_as_its_data_frame(tmp_path: Path) -> None:
    columns = {"a": [1.5, 2, 3, 4], "b": [4, 3, 2, 1], "label": [0, 1, 1, 0]}
    table = pa.table(columns)
    for part in ("train", "test"):
        pq.write_table(table, tmp_path / f"{part}.parquet")
    frame = table.to_pandas()
    expected = fl.from_pandas(frame, label="label", test=frame)
    assert fl.from_parquet(tmp_path) == expected


def test_fractions_as_labels_are_numbers_to_predict(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path / f"{part}.parquet", pixels(3), [0.5, 1.5, 2.0])
    source = fl.from_parquet(tmp_path, target="number")
    assert source.num_classes == 0
    assert source.load().train.y.tolist() == [0.5, 1.5, 2.0]


def test_what_is_missing_or_unclear_is_named(tmp_path: Path) -> None:
    folder = write_all(tmp_path / "one")
    assert "did you mean 'writer'?" in refused(fl.from_parquet, folder, client="writr")
    assert "did you mean 'img'?" in refused(fl.from_parquet, folder, image="imgs")
    text = refused(fl.from_parquet, folder, image="img", features=["writer"])
    assert "image='img' is a column of images" in text
    text = refused(fl.from_parquet, folder, test="train")
    assert "would make the training samples the test set" in text
    (folder / "data" / "train-00001-of-00002.parquet").unlink()
    text = refused(fl.from_parquet, folder)
    assert "or all shards such as train-00000-of-00001" in text
    assert "has: data/train-00000-of-00002.parquet; give" in text
    for name in ("en", "fr"):
        write_all(tmp_path / "two" / name)
    text = refused(fl.from_parquet, tmp_path / "two")
    assert "has: no Parquet files; give the folder of one dataset" in text
    for name in ("en", "fr"):
        write(tmp_path / "both" / name / "train.parquet", pixels(2), [0, 1])
    text = refused(fl.from_parquet, tmp_path / "both", test_share=0.5)
    assert "of one dataset, and has: en/train.parquet, fr/train.parquet; " in text
    assert "is missing; looked for" in refused(fl.from_parquet, tmp_path / "tow")
    write(tmp_path / "three" / "train.parquet", pixels(2), [0, 5])
    write(tmp_path / "three" / "test.parquet", pixels(2), [0, 1])
    text = refused(fl.from_parquet, tmp_path / "three")
    assert "holds the label 5 (row 1), but names= names 3 classes" in text


def test_the_only_column_of_images_is_taken(tmp_path: Path) -> None:
    picture = [{"bytes": png(image)} for image in pixels(2)]
    for part in ("train", "test"):
        table = pa.table({"a": picture, "b": picture, "c": [0, 1]})
        pq.write_table(table, tmp_path / f"{part}.parquet")
    assert "several columns of images (a, b); say which one by image=" in refused(
        fl.from_parquet, tmp_path
    )
    assert "has no column 'label': known are a, b, c" in refused(
        fl.from_parquet, tmp_path, image="a"
    )
    assert fl.from_parquet(tmp_path, image="b", label="c").load().num_classes == 2


def test_a_folder_of_save_to_disk_is_told_apart_from_one_of_parquet(
    tmp_path: Path,
) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "data-00000-of-00001.arrow").touch()
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    for folder in (tmp_path, tmp_path / "train"):
        with pytest.raises(ValueError, match=r"save_to_disk wrote .*to_parquet\("):
            fl.from_parquet(folder)
