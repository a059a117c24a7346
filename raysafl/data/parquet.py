"""Data of one's own in Parquet, in the layout of Hugging Face: images, or a table.

A dataset is a set of files, of which each belongs to a split, such as `train`. The name
of a file says to which: `train.parquet`, `train-00000-of-00002.parquet`, in the folder
itself or in `data/`, or a number in a folder `train/`, as in `train/0000.parquet`.
"""

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raysafl.core.problem import Dataset, Samples
from raysafl.core.text import nearest
from raysafl.data.in_memory import InMemory
from raysafl.data.own_arrays import (
    WHICH_TEST,
    check_parts,
    draw_test,
    pixels_of,
    refuse_classes_only_in_test,
)
from raysafl.data.own_columns import (
    SHOWN,
    Array,
    Target,
    Targets,
    counted,
    encode_columns,
    read_targets,
)
from raysafl.data.own_tables import find_path, from_pandas
from raysafl.data.sources import ImageSource, data_root

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SHARD = re.compile(r"(?P<split>.+?)-(?P<number>\d{5})-of-(?P<count>\d{5})(-\w+)?")
TRAIN = "train"
# Splits by their names, and the files of each in order.
Files = dict[str, list[str]]
# Where the files with a content lie, for configurations that are read from JSON.
_places: dict[str, Files] = {}


class ParquetImages(ImageSource):
    """Images in Parquet files, in the layout of Hugging Face.

    `from_parquet` makes it from a folder as it lies on disk, and finds the columns. The
    content of the files then identifies the data, and their place does not: the same
    files elsewhere are the same run, and changed files are another run.
    `ParquetImages(path=...)` is identified by the path instead.

    A column holds the images: structs with encoded `bytes`, or with the `path` of an
    image file beside the Parquet file, or the encoded bytes or the path alone. All
    images must have the same shape. Another column holds the label: whole numbers from
    0, with the names of the classes where the file's metadata give them; or text; or
    fractions, which are numbers to predict. Pixel values are scaled from 0..255 to
    `low`..`high`, and then standardised if `standardise` says so; a mean and a standard
    deviation that you give are those of inputs from `low` to `high`.
    """

    path: str = Field(
        default="",
        description="The folder; a relative path is looked up in the folder RAYSAFL_DATA.",
    )
    files: dict[str, list[str]] = Field(
        default={},
        exclude=True,
        description="The files of each split, if `content` identifies them; no part of "
        "the run's id.",
    )
    content: str = Field(
        default="",
        pattern="^([0-9a-f]{64})?$",
        description="SHA-256 of the files, which is verified when they are read; empty: "
        "`path` identifies them.",
    )
    low: float = Field(default=0.0, description="What the pixel value 0 becomes.")
    high: float = Field(default=1.0, description="What the pixel value 255 becomes.")
    image: str = Field(default="image", description="The column of the images.")
    label: str = Field(default="label", description="The column of the targets.")
    client: tuple[str, ...] = Field(
        default=(), description="Columns by which `ByColumn` can make clients."
    )
    test: str = Field(
        default="test",
        description="The split that is the test set, such as `test` or `validation`.",
    )
    test_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="In place of a test split, the fraction of the training samples "
        "that is kept for testing, drawn at random.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Seed of the draw of `test_share`.",
    )
    target: Target = Field(
        default="auto",
        description="What the label is: `class`, `number` or, by its type, `auto`.",
    )
    num_classes: int | None = Field(
        default=None,
        ge=0,
        description="Number of classes, as `from_parquet` found it; 0 for numbers.",
    )
    name: str = Field(
        default="", description="A name for messages; by default that of the folder."
    )

    @model_validator(mode="after")
    def _range(self) -> "ParquetImages":
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self

    @model_validator(mode="after")
    def _has_a_place(self) -> "ParquetImages":
        if not self.path and not self._known_files():
            if not self.content:
                raise ValueError("give path=, or use fl.from_parquet(folder)")
            raise ValueError(
                f"where the Parquet files of this configuration (content "
                f"{self.content[:12]}...) lie is not known in this process, since it is "
                "no part of the JSON; give fl.from_parquet(...) their folder before "
                "reading the configuration"
            )
        if self.files and not self.content:
            raise ValueError("files= needs content=; fl.from_parquet(files) gives both")
        if self.files:
            _places[self.content] = self.files
        return self

    def _known_files(self) -> Files:
        return self.files or _places.get(self.content, {})

    def read(self) -> Dataset:
        """Decode all images of the training files and of the test files.

        Raises:
            ValueError: a file or a column is missing, a label is none, an image cannot
                be decoded, the images differ in shape, or the files have changed.
        """
        files = self._found_files()
        if self.content:
            self._verify(files)
        # The labels are read first, as images take long.
        labels = self._labels(files)
        parts = []
        clients = []
        for split in self._splits:
            tables = [_read(file, self.client) for file in files[split]]
            clients.append({name: _joined(tables, name) for name in self.client})
        columns = encode_columns(clients)
        for split, y, own in zip(self._splits, labels.parts, columns, strict=True):
            x = _decoded(files[split], self.image)
            scale = (self.high - self.low) / 255
            parts.append(Samples(x, y, scale, self.low, columns=own))
        if self.test_share is not None:
            rows = draw_test(len(parts[0]), self.test_share, self.seed)
            parts = [parts[0].take(part) for part in rows]
        train, test = parts
        name = self._name(files)
        if train.x.shape[1:] != test.x.shape[1:]:
            raise ValueError(
                f"{name}: training images are {train.x.shape[1:]}, test images "
                f"{test.x.shape[1:]} (channels, height, width); they must be alike"
            )
        check_parts(train, test)
        if labels.names and not self._class_names(files):
            refuse_classes_only_in_test(train, test, labels.names)
        return Dataset(name, train, test, labels.num_classes, labels.names)

    @property
    def _splits(self) -> list[str]:
        return [TRAIN] if self.test_share is not None else [TRAIN, self.test]

    def _found_files(self) -> Files:
        if self.path:
            return choose_files(data_root() / self.path, self._splits)
        return self._known_files()

    def _name(self, files: Files) -> str:
        if self.name or self.path:
            return self.name or Path(self.path).name
        return name_of(files)

    def _verify(self, files: Files) -> None:
        for file in (file for split in files.values() for file in split):
            if not Path(file).is_file():
                raise ValueError(
                    f"{file} is missing; put it back, or make the source anew"
                )
        content = content_of_files(files, self.image)
        if content != self.content:
            raise ValueError(
                f"the files of {name_of(files)} ({next(iter(files.values()))[0]}, ...) have "
                "changed since the source was made; put the old ones back, or make the "
                "source anew by fl.from_parquet, which is another run"
            )

    def _labels(self, files: Files) -> Targets:
        """Read the labels of all splits, without any image."""
        first = files[TRAIN][0]
        for split in self._splits:
            for file in files[split]:
                _check_columns(file, self.image, self.label, self.client)
        parts = [_labels_of(files[split], self.label) for split in self._splits]
        return read_labels(parts, self.target, self._class_names(files), first)

    def _class_names(self, files: Files) -> list[str] | None:
        """Return the names of the classes that the metadata give."""
        names = features_of(files[TRAIN][0]).get(self.label, {}).get("names")
        return names if isinstance(names, list) else None


def read_labels(
    parts: list[Array], target: Target, names: Sequence[str] | None, file: str
) -> Targets:
    """Read targets: whole numbers are the numbers of classes, from 0."""
    whole = all(part.dtype.kind in "iu" for part in parts)
    if not whole or target == "number":
        return read_targets(parts, f"{file}: the label", target)
    for part in parts:
        if not len(part) or part.min() < 0:
            given = f"the least is {part.min()}" if len(part) else "there are none"
            raise ValueError(f"{file}: labels must be integers from 0, but {given}")
    count = 1 + int(max(part.max() for part in parts))
    if names is not None and count > len(names):
        raise ValueError(
            f"{file}: there is the label {count - 1}, but its metadata name "
            f"{len(names)} classes"
        )
    return Targets(
        [part.astype(np.int64) for part in parts],
        count if names is None else len(names),
        () if names is None else tuple(map(str, names)),
    )


def from_parquet(
    path: str | Path | Sequence[str | Path] | Mapping[str, Any],
    *,
    image: str | None = None,
    label: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    client: str | Sequence[str] | None = None,
    test: str = "test",
    test_share: float | None = None,
    target: Target = "auto",
    standardise: bool | tuple[float, float] = False,
    low: float = 0.0,
    high: float = 1.0,
    seed: int = 0,
    name: str = "",
) -> ParquetImages | InMemory:
    """Make a dataset of Parquet files as Hugging Face lays them out.

    Images are decoded when a sweep needs them; the bytes of the files identify the
    data. A table without images is read at once, as `from_pandas` reads it. In both
    cases the place of the files is no part of a run's id.

    Args:
        path: the folder, in which `train-00000-of-00002.parquet`, `test.parquet` and so
            on lie, in `data/` or anywhere below; or the files; or the files of each
            split by its name. A relative path is looked up in the current folder, and
            then in the folder RAYSAFL_DATA.
        image: the column of the images; by default the only one that holds images.
        label: the column of the target; by default the one with the name "label", or
            else the only one that the metadata call a class.
        features: of a table, the columns that the model sees, see `from_pandas`.
        client: the column that says to whom a sample belongs, or several columns.
        test: the split that is the test set; "validation" if you mean that one.
        test_share: in place of a test split, the fraction of the training samples that
            is kept for testing.
        target: "class" or "number", if "auto" does not tell it by the column's type.
        standardise: see `ImageSource`; of a table, True standardises each feature.
        low: what the pixel value 0 becomes.
        high: what the pixel value 255 becomes.
        seed: the seed of the draw of `test_share`.
        name: a name for messages and the configuration.

    Returns:
        A source for `Federation(dataset=...)`.

    Raises:
        ValueError: files, shards or columns are missing, or it is unclear which are
            meant; the message names those that are there.
    """
    files = _given_files(path, test, test_share)
    first = files[TRAIN][0]
    schema = _schema(first)
    features_meta = features_of(first)
    if image is None and features is None:
        image = _find_image(schema, features_meta, first)
    if label is None:
        label = _find_label(schema, features_meta, first)
    if image is None:
        return _table(
            files, label, features, client, test_share, target, standardise, seed, name
        )
    if not isinstance(label, str):
        raise ValueError(f"images have one label column, but label={label!r}")
    for column in [image, label, *_names(client)]:
        _check_known(column, schema, first)
    source = ParquetImages(
        files=files,
        content=content_of_files(files, image),
        image=image,
        label=label,
        client=_names(client),
        test=test,
        test_share=test_share,
        target=target,
        standardise=standardise,
        low=low,
        high=high,
        seed=seed,
        name=name,
    )
    return source.replace(num_classes=source._labels(files).num_classes)


def _names(client: str | Sequence[str] | None) -> tuple[str, ...]:
    if client is None:
        return ()
    return (client,) if isinstance(client, str) else tuple(client)


def _table(
    files: Files,
    label: str | Sequence[str],
    features: Sequence[str] | None,
    client: str | Sequence[str] | None,
    test_share: float | None,
    target: Target,
    standardise: bool | tuple[float, float],
    seed: int,
    name: str,
) -> InMemory:
    """Read a table without images, see `from_pandas`."""
    frames = [_frame(own) for own in files.values()]
    names = None
    if isinstance(label, str):
        names = features_of(files[TRAIN][0]).get(label, {}).get("names")
    if not isinstance(standardise, bool):
        raise ValueError(
            "standardise must be True or False for a table, whose features are "
            f"standardised one by one, not {standardise!r}"
        )
    return from_pandas(
        frames[0],
        label=label,
        features=features,
        client=client,
        test=None if test_share is not None else frames[1],
        test_share=test_share,
        target=target,
        names=names,
        standardise=standardise,
        seed=seed,
        name=name,
    )


def _frame(files: Sequence[str]) -> "pd.DataFrame":
    """Read files into one DataFrame."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.concat_tables([pq.read_table(file) for file in files])
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{files[0]} and the other files of its split differ in their columns ({error})"
        ) from error
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    return frame


# --- which files


def split_of(file: Path) -> str:
    """Return the split that a Parquet file belongs to, by its name or its folder's."""
    shard = SHARD.fullmatch(file.stem)
    if shard:
        return shard["split"]
    return file.parent.name if file.stem.isdigit() else file.stem


def choose_files(folder: Path, splits: Sequence[str]) -> Files:
    """Find the files of some splits in a folder.

    Raises:
        ValueError: there are none of a split, a shard is missing, or there are several
            datasets.
    """
    found = sorted(folder.rglob("*.parquet")) if folder.is_dir() else []
    by_split: dict[str, list[Path]] = {}
    for file in found:
        by_split.setdefault(split_of(file), []).append(file)
    for split in splits:
        if split not in by_split:
            raise ValueError(_no_split(folder, split, by_split))
    return {split: _checked_shards(by_split[split], folder) for split in splits}


def _no_split(folder: Path, split: str, by_split: Mapping[str, Any]) -> str:
    """Say that a folder has no files of a split."""
    there = ", ".join(sorted(by_split)[:SHOWN]) or "no Parquet files"
    advice = "for another folder, set RAYSAFL_DATA or give an absolute path"
    if by_split and split != TRAIN:
        advice = f"give test= the name of another split, or test_share=0.2; {advice}"
    return (
        f"{folder / f'{split}.parquet'} is missing, and so are shards such as "
        f"{split}-00000-of-00001.parquet ({folder} has: {there}); {advice}"
    )


def _checked_shards(files: Sequence[Path], folder: Path) -> list[str]:
    """Return the files of a split in order, if they are all shards of one dataset."""
    folders = sorted({str(file.parent.relative_to(folder)) for file in files})
    if len(folders) > 1:
        raise ValueError(
            f"{folder} holds several datasets, in {', '.join(folders[:SHOWN])}; give the "
            "folder of one of them"
        )
    shards = [match for file in files if (match := SHARD.fullmatch(file.stem))]
    if shards and len(shards) < len(files):
        names = ", ".join(file.name for file in files[:SHOWN])
        raise ValueError(
            f"{files[0].parent} holds a split both as one file and in shards ({names}); "
            "give the files by path={'train': [...], 'test': [...]}"
        )
    counts = {int(shard["count"]) for shard in shards}
    if len(counts) > 1 or (counts and len(shards) != max(counts)):
        names = ", ".join(file.name for file in files[:SHOWN])
        raise ValueError(
            f"{files[0].parent} has {counted(len(shards), 'shard')} of a split of "
            f"{max(counts)}: {names}; shards are missing, or there are others' too"
        )
    return [str(file) for file in files]


def _given_files(path: Any, test: str, test_share: float | None) -> Files:
    """Return the files of the splits that are needed.

    Raises:
        ValueError: some are missing.
    """
    splits = [TRAIN] if test_share is not None else [TRAIN, test]
    if isinstance(path, Mapping):
        files = {
            str(split): [str(find_path(file)) for file in _as_paths(own)]
            for split, own in path.items()
        }
    elif isinstance(path, str | Path):
        place = find_path(path)
        if place.is_dir():
            return choose_files(place, splits)
        files = {TRAIN: [str(place)]}
    else:
        files = {}
        for file in map(find_path, path):
            files.setdefault(split_of(file), []).append(str(file))
    for split in splits:
        if not files.get(split):
            there = ", ".join(files) or "none"
            raise ValueError(
                f"there are no files of the split '{split}' (there are: {there}); "
                "give path={'train': [...], 'test': [...]}"
                f"{'' if split == TRAIN else f'. {WHICH_TEST}'}"
            )
    return {split: files[split] for split in splits}


def _as_paths(files: Any) -> list[Any]:
    return [files] if isinstance(files, str | Path) else list(files)


def name_of(files: Files) -> str:
    """Return the name of the folder in which files lie; `data` is none."""
    folder = Path(files[TRAIN][0]).parent
    return folder.parent.name if folder.name == "data" else folder.name


def content_of_files(files: Files, image: str) -> str:
    """Return the SHA-256 of files, in order, and of the image files that they name."""
    sha = hashlib.sha256()
    for split, own in files.items():
        for file in own:
            sha.update(f"{split} {_sha256(file)}\n".encode())
            for picture in _image_files(file, image):
                sha.update(f"{_sha256(picture)}\n".encode())
    return sha.hexdigest()


def _sha256(file: str) -> str:
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error})") from error


# --- what is in a file


def _schema(file: str) -> "pa.Schema":
    # Imported here, because most data are in no Parquet file.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file} is not a Parquet file ({error})") from error


def features_of(file: str) -> dict[str, Any]:
    """Return what Hugging Face's metadata say of each column; nothing without them."""
    metadata = _schema(file).metadata or {}
    try:
        info = json.loads(metadata.get(b"huggingface", b"{}"))
        found = info.get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _find_image(
    schema: "pa.Schema", features: Mapping[str, Any], file: str
) -> str | None:
    """Return the only column that holds images; None if there is none."""
    columns: list[str] = schema.names
    found = [
        name
        for name in columns
        if features.get(name, {}).get("_type") == "Image"
        or _is_image_struct(schema.field(name).type)
    ]
    if len(found) > 1:
        raise ValueError(
            f"{file} has several columns of images ({', '.join(found)}); say which one "
            "by image="
        )
    return found[0] if found else None


def _find_label(schema: "pa.Schema", features: Mapping[str, Any], file: str) -> str:
    """Return the only column of classes, or the column `label`."""
    columns: list[str] = schema.names
    found = [
        name for name in columns if features.get(name, {}).get("_type") == "ClassLabel"
    ]
    if "label" in columns:
        return "label"
    if len(found) == 1:
        return found[0]
    raise ValueError(
        f"{file} has no column 'label' (it has: {', '.join(schema.names)}); say which "
        "one is the target by label="
    )


def _check_known(column: str, schema: "pa.Schema", file: str) -> None:
    if column not in schema.names:
        raise ValueError(
            f"{file} has no column '{column}': {nearest(column, schema.names)}"
        )


def _is_image_struct(kind: "pa.DataType") -> bool:
    from pyarrow.types import is_struct

    return bool(is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _check_columns(file: str, image: str, label: str, client: Sequence[str]) -> None:
    """Check that the columns are there and of a type that can be read.

    Raises:
        ValueError: one is missing, or the images are of another type.
    """
    if not Path(file).is_file():
        raise ValueError(f"{file} is missing")
    schema = _schema(file)
    for name in (image, label, *client):
        if name not in schema.names:
            raise ValueError(
                f"{file} has no column '{name}' (it has: {', '.join(schema.names)})"
            )
    kind = schema.field(image).type
    alone = _is_binary(kind) or _is_text(kind)
    if not alone and not _is_image_struct(kind):
        raise ValueError(
            f"{file}: '{image}' must be a struct with 'bytes', or encoded bytes, or the "
            f"path of an image file; the column is {kind}"
        )


def _is_binary(kind: "pa.DataType") -> bool:
    from pyarrow.types import is_binary, is_large_binary

    return bool(is_binary(kind) or is_large_binary(kind))


def _is_text(kind: "pa.DataType") -> bool:
    from pyarrow.types import is_large_string, is_string

    return bool(is_string(kind) or is_large_string(kind))


def _read(file: str, columns: Sequence[str]) -> "pa.Table":
    import pyarrow.parquet as pq

    return pq.read_table(file, columns=list(columns))


def _joined(tables: "Sequence[pa.Table]", column: str) -> Array:
    """Return a column of several tables as one array."""
    parts = [_plain(table[column]) for table in tables]
    return np.concatenate(parts)


def _plain(column: "pa.ChunkedArray") -> Array:
    """Return a column as an array; text and categories as objects."""
    from pyarrow.types import is_dictionary

    if is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values: Array = column.to_pandas().to_numpy()
    return values


def _labels_of(files: Sequence[str], label: str) -> Array:
    """Read the labels of a split.

    Raises:
        ValueError: a label is missing.
    """
    from pyarrow.types import is_nested

    parts = []
    for file in files:
        column = _read(file, [label])[label]
        if column.null_count:
            raise ValueError(f"{file} has rows without an image or a label")
        kind = column.type
        if is_nested(kind):
            raise ValueError(
                f"{file}: the label '{label}' is {kind}; give a column with one value a "
                "sample"
            )
        parts.append(_plain(column))
    return np.concatenate(parts)


# --- images


def _image_files(file: str, image: str) -> list[str]:
    """Return the image files that a Parquet file names instead of holding images."""
    schema = _schema(file)
    if image not in schema.names:
        return []
    kind = schema.field(image).type
    if _is_text(kind):
        paths = _read(file, [image])[image].to_pylist()
    elif _is_image_struct(kind) and kind.get_field_index("path") >= 0:
        if not _lacks_bytes(file, image):
            return []
        rows = _read(file, [image])[image].to_pylist()
        paths = [row["path"] for row in rows if row and row["bytes"] is None]
    else:
        return []
    folder = Path(file).parent
    return [str(folder / path) for path in paths if path]


def _lacks_bytes(file: str, image: str) -> bool:
    """Return whether some image is not in a Parquet file, or may not be."""
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(file).metadata
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for j in range(rows.num_columns):
            column = rows.column(j)
            if column.path_in_schema == f"{image}.bytes":
                counts = column.statistics
                known = counts is not None and counts.has_null_count
                if not known or counts.null_count:
                    return True
    return False


def _decoded(files: Sequence[str], image: str) -> NDArray[np.uint8]:
    """Decode all images of a split to [n, channels, height, width].

    Raises:
        ValueError: an image is missing, cannot be decoded, or has another shape.
    """
    images: list[NDArray[np.uint8]] = []
    for file in files:
        table = _read(file, [image])
        if table[image].null_count:
            raise ValueError(f"{file} has rows without an image or a label")
        for row, value in enumerate(table[image].to_pylist()):
            pixels = _decode(_content(value, file, row), file, row)
            if images and pixels.shape != images[0].shape:
                shapes = sorted({pixels.shape, images[0].shape})
                raise ValueError(f"{file} mixes image shapes {shapes}; make them alike")
            images.append(pixels)
    # Colour images are transposed views, and a stack of such views is not contiguous.
    return np.ascontiguousarray(np.stack(images))


def _content(value: Any, file: str, row: int) -> bytes:
    """Return the encoded bytes of an image, from the row itself or from its file."""
    path = value if isinstance(value, str) else None
    if isinstance(value, dict):
        path = value.get("path")
        value = value["bytes"]
    if isinstance(value, bytes):
        return value
    if not path:
        raise ValueError(
            f"{file}: row {row} has neither the bytes nor the path of an image"
        )
    try:
        return (Path(file).parent / path).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{file}: the image of row {row} cannot be read ({error})"
        ) from error


def _decode(content: bytes, file: str, row: int) -> NDArray[np.uint8]:
    """Decode one image to [channels, height, width] with one or three channels."""
    from PIL import Image

    try:
        return pixels_of(Image.open(io.BytesIO(content)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{file}: an image cannot be decoded (row {row}: {error})"
        ) from error
