"""Data in Parquet, in the layout of Hugging Face: images, or a table.

A dataset is a set of files, of which each belongs to a split, such as `train`. The name
of a file says to which: `train.parquet`, `train-00000-of-00002.parquet`, or a number in
a folder `train/`, as in `train/0000.parquet`. The files lie in the folder of the dataset
or one below, such as `data/`.
"""

import io
import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raysafl.core.problem import Dataset, Samples
from raysafl.core.text import first_of, nearest
from raysafl.data.in_memory import InMemory
from raysafl.data.own_arrays import dataset_of_parts, from_arrays, pixels_of
from raysafl.data.own_columns import (
    SHOWN,
    Array,
    Targets,
    as_plain_array,
    read_targets,
)
from raysafl.data.own_tables import as_list, find_path, from_pandas
from raysafl.data.sources import ImageSource, data_root

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SHARD = re.compile(r"(?P<split>.+?)-(?P<number>\d{5})-of-(?P<count>\d{5})(-\w+)?")
TRAIN = "train"
# Splits by their names, and the files of each in order.
Files = dict[str, list[str]]


class ParquetImages(ImageSource):
    """Images in Parquet files in a folder, whose path identifies them.

    For images of your own take `from_parquet`, by which their values identify them. This
    class is for a dataset that lies in a folder of the same name on every machine.

    A column holds the images: structs with encoded `bytes`, or the encoded bytes alone.
    All images must have the same shape. Another column holds the label: whole numbers
    from 0, with the names of the classes where the file's metadata give them; or text;
    or fractions, which are numbers to predict. Pixel values are scaled from 0..255 to
    `low`..`high`, and then standardised if `standardise` says so; a mean and a standard
    deviation that you give are those of inputs from `low` to `high`.
    """

    path: str = Field(
        min_length=1,
        description="The folder; a relative path is looked up in the folder RAYSAFL_DATA.",
    )
    low: float = Field(default=0.0, description="What the pixel value 0 becomes.")
    high: float = Field(default=1.0, description="What the pixel value 255 becomes.")
    image: str = Field(default="image", description="The column of the images.")
    label: str = Field(default="label", description="The column of the targets.")
    test: str = Field(
        default="test",
        description="The split that is the test set, such as `test` or `validation`.",
    )
    name: str = Field(
        default="", description="A name for messages; by default that of the folder."
    )
    # Fields that went, each with the value that the ids of stored runs hold.
    content: Literal[""] = Field(default="", repr=False, description="Always empty.")
    client: tuple[()] = Field(default=(), repr=False, description="Always empty.")
    test_share: None = Field(default=None, repr=False, description="Always None.")
    seed: Literal[0] = Field(default=0, repr=False, description="Always 0.")
    target: Literal["auto"] = Field(
        default="auto", repr=False, description="Always `auto`."
    )
    num_classes: None = Field(default=None, repr=False, description="Always None.")

    @model_validator(mode="after")
    def _range(self) -> "ParquetImages":
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self

    def read(self) -> Dataset:
        """Decode all images of the training files and of the test files.

        Raises:
            ValueError: a file or a column is missing, a label is none, an image cannot
                be decoded, or the images differ in shape.
        """
        files = _find_files(data_root() / self.path, [TRAIN, self.test])
        columns = [self.image, self.label]
        tables = [_read_columns(paths, columns) for paths in files.values()]
        first = files[TRAIN][0]
        names = _class_names(first, self.label)
        # The labels are read first, as images take long.
        written = [as_plain_array(table[self.label]) for table in tables]
        labels = _numbered(written, names, f"{first}: the label")
        scale = (self.high - self.low) / 255
        parts = [
            Samples(_decoded(table[self.image], paths[0]), y, scale, self.low)
            for table, paths, y in zip(
                tables, files.values(), labels.parts, strict=True
            )
        ]
        return dataset_of_parts(self.name or Path(self.path).name, parts, labels, names)


def _numbered(parts: list[Array], names: Sequence[str] | None, what: str) -> Targets:
    """Read targets: whole numbers are the numbers of classes, from 0."""
    if names is not None or any(part.dtype.kind not in "iu" for part in parts):
        return read_targets(parts, what, names=names)
    count = 1 + max(int(part.max(initial=0)) for part in parts)
    return Targets([part.astype(np.int64) for part in parts], count, ())


def from_parquet(
    path: str | Path,
    *,
    image: str | None = None,
    label: str | Sequence[str] = "label",
    features: Sequence[str] | None = None,
    client: str | Sequence[str] | None = None,
    test: str = "test",
    test_share: float | None = None,
    **options: Any,
) -> InMemory:
    """Make a dataset of Parquet files as Hugging Face lays them out.

    The files are read once, in this call: a table without images as `from_pandas` reads
    it, and images as `from_arrays` takes them. Their values identify the data, not the
    files or their place.

    Args:
        path: the folder, in which `train-00000-of-00002.parquet`, `test.parquet` and so
            on lie, or in a folder below such as `data/`. A relative path is looked up in
            the current folder, and then in the folder RAYSAFL_DATA.
        image: the column of the images; by default the only one that holds images.
        label: the column of the target.
        features: of a table, see `from_pandas`.
        client: see `from_pandas`.
        test: the split that is the test set; "validation" if you mean that one.
        test_share: in place of a test split, the fraction of the training samples that
            is kept for testing.
        options: all other arguments of `from_arrays` or `from_pandas`, such as
            `standardise`, `target` and `name`. `names` are those in the metadata unless
            you give them.

    Returns:
        A source for `Federation(dataset=...)`.

    Raises:
        ValueError: files, shards or columns are missing, or it is unclear which are
            meant; the message names those that are there. Or see `from_pandas`.
    """
    if test_share is None and test == TRAIN:
        raise ValueError(
            f"test='{TRAIN}' would make the training samples the test set; give test= the "
            "name of another split, or test_share=0.2"
        )
    splits = [TRAIN] if test_share is not None else [TRAIN, test]
    files = _find_files(find_path(path), splits)
    first = files[TRAIN][0]
    if image is None and features is None:
        image = _find_image(first)
    if isinstance(label, str) and options.get("target") != "number":
        options.setdefault("names", _class_names(first, label))
    options |= {"test_share": test_share}
    if image is None:
        train, *others = [_read_columns(own) for own in files.values()]
        options |= {"features": features, "client": client}
        return from_pandas(
            train, label=label, test=others[0] if others else None, **options
        )
    if features is not None or not isinstance(label, str):
        raise ValueError(
            f"image={image!r} is a column of images, which go with one label= and "
            "without features="
        )
    clients = as_list(client)
    parts = []
    for own in files.values():
        table = _read_columns(own, [*dict.fromkeys([image, label, *clients])])
        images = _decoded(table[image], own[0])
        parts.append((images, table[label], table[clients]))
    x, y, columns = parts[0]
    tested = parts[1] if len(parts) > 1 else None
    return from_arrays(x, y, clients=columns, test=tested, **options)


# --- which files


def _find_files(folder: Path, splits: Sequence[str]) -> Files:
    """Find the files of some splits in a folder.

    Raises:
        ValueError: there are none of a split, a shard is missing, or there are files of
            several datasets.
    """
    found: Files = {}
    for file in sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]):
        shard = SHARD.fullmatch(file.stem)
        split = file.parent.name if file.stem.isdigit() else file.stem
        found.setdefault(shard["split"] if shard else split, []).append(str(file))
    for split in splits:
        files = found.get(split, [])
        shards = [SHARD.fullmatch(Path(file).stem) for file in files]
        # Files without a count are those of a folder `train/`, or a single one.
        counts = {int(shard["count"]) if shard else 1 for shard in shards}
        is_whole = not any(shards) or counts == {len(files)}
        if len({Path(file).parent for file in files}) != 1 or not is_whole:
            names = [
                str(Path(file).relative_to(folder))
                for file in files or chain(*found.values())
            ]
            raise ValueError(
                f"{folder} must hold {split}.parquet, or all shards such as "
                f"{split}-00000-of-00001.parquet, of one dataset, and has: "
                f"{first_of(names, SHOWN) or 'no Parquet files'}; give the folder of one "
                "dataset (or set RAYSAFL_DATA), another split by test=, or "
                "test_share=0.2. A folder that "
                "Hugging Face's save_to_disk wrote has no Parquet: write it by "
                "load_from_disk(...)['train'].to_parquet('FOLDER/train.parquet')"
            )
    return {split: found[split] for split in splits}


# --- what is in a file


def _schema(file: str) -> "pa.Schema":
    # Imported here, because most data are in no Parquet file.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file} is not a Parquet file ({error})") from error


def _class_names(file: str, label: str) -> list[str] | None:
    """Return the names of a column's classes, if Hugging Face's metadata give them."""
    metadata = _schema(file).metadata or {}
    info = json.loads(metadata.get(b"huggingface", b"{}"))
    features = info.get("info", {}).get("features", {})
    names: list[str] | None = features.get(label, {}).get("names")
    return names


def _find_image(file: str) -> str | None:
    """Return the only column that holds images; None if there is none.

    Raises:
        ValueError: there are several.
    """
    from pyarrow.types import is_struct

    found = [
        field.name
        for field in _schema(file)
        if is_struct(field.type) and field.type.get_field_index("bytes") >= 0
    ]
    if len(found) > 1:
        raise ValueError(
            f"{file} has several columns of images ({', '.join(found)}); say which one "
            "by image="
        )
    return found[0] if found else None


def _read_columns(
    files: Sequence[str], columns: Sequence[str] | None = None
) -> "pd.DataFrame":
    """Read some columns of files into one DataFrame, or all of them.

    Raises:
        ValueError: a column is missing, or the files differ in their columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        names = _schema(file).names
        for name in columns or ():
            if name not in names:
                raise ValueError(
                    f"{file} has no column '{name}': {nearest(name, names)}"
                )
    # Files that differ in their columns are a ValueError of pyarrow's own.
    table = pa.concat_tables([pq.read_table(own, columns=columns) for own in files])
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    return frame


def _decoded(column: "pd.Series[Any]", file: str) -> NDArray[np.uint8]:
    """Decode the images of a split to [n, channels, height, width].

    Args:
        column: the encoded images.
        file: the first file of the split, for messages.

    Raises:
        ValueError: an image is missing, cannot be decoded, or has another shape.
    """
    images = [_decode(value, file, row) for row, value in enumerate(column)]
    shapes = sorted({pixels.shape for pixels in images})
    if len(shapes) > 1:
        raise ValueError(f"{file} mixes image shapes {shapes[:SHOWN]}; make them alike")
    # Colour images are transposed views, and a stack of such views is not contiguous.
    return np.ascontiguousarray(np.stack(images))


def _decode(value: Any, file: str, row: int) -> NDArray[np.uint8]:
    """Decode one image to [channels, height, width] with one or three channels."""
    from PIL import Image

    content = value["bytes"] if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise ValueError(
            f"{file}: row {row} does not hold the bytes of an image; the column must "
            "hold structs with 'bytes', or encoded bytes"
        )
    try:
        return pixels_of(Image.open(io.BytesIO(content)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{file}: an image cannot be decoded (row {row}: {error})"
        ) from error
