"""Data of one's own in Parquet, in the layout of Hugging Face: images, or a table.

A dataset is a set of files, of which each belongs to a split, such as `train`. The name
of a file says to which: `train.parquet`, `train-00000-of-00002.parquet`, or a number in
a folder `train/`, as in `train/0000.parquet`. The files lie in the folder of the dataset
or one below, such as `data/`.
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
from raysafl.core.text import closest
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
from raysafl.data.own_tables import as_list, find_path, from_pandas
from raysafl.data.sources import ImageSource, data_root

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SHARD = re.compile(r"(?P<split>.+?)-(?P<number>\d{5})-of-(?P<count>\d{5})(-\w+)?")
TRAIN = "train"
# Splits by their names, and the files of each in order.
Files = dict[str, list[str]]
# What Hugging Face knows of each column, such as its kind and the names of classes.
Metadata = Mapping[str, Any]
# Where the files with a content lie, for configurations that are read from JSON.
_places: dict[str, Files] = {}


class ParquetImages(ImageSource):
    """Images in Parquet files, in the layout of Hugging Face.

    `from_parquet` makes it from a folder as it lies on disk, and finds the columns. The
    content of the files then identifies the data, and their place does not: the same
    files elsewhere are the same run, and changed files are another run.
    `ParquetImages(path=...)` is identified by the path instead.

    A column holds the images: structs with encoded `bytes`, or the encoded bytes alone.
    All images must have the same shape. Another column holds the label: whole numbers
    from 0, with the names of the classes where the file's metadata give them; or text;
    or fractions, which are numbers to predict. Pixel values are scaled from 0..255 to
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
        if self.files and not self.content:
            raise ValueError("files= needs content=; fl.from_parquet(files) gives both")
        if self.files:
            _places[self.content] = self.files
        if not self.path and not self.content:
            raise ValueError("give path=, or use fl.from_parquet(folder)")
        if not self.path and self.content not in _places:
            raise ValueError(
                f"where the Parquet files of this configuration (content "
                f"{self.content[:12]}...) lie is not known in this process, since it is "
                "no part of the JSON; give fl.from_parquet(...) their folder before "
                "reading the configuration"
            )
        return self

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
        clients = [
            {name: _joined_column(files[split], name) for name in self.client}
            for split in self._splits
        ]
        scale = (self.high - self.low) / 255
        parts = [
            Samples(_decoded(files[split], self.image), y, scale, self.low, columns=own)
            for split, y, own in zip(
                self._splits, labels.parts, encode_columns(clients), strict=True
            )
        ]
        if self.test_share is not None:
            rows = draw_test(len(parts[0]), self.test_share, self.seed)
            parts = [parts[0].take(part) for part in rows]
        train, test = parts
        name = self.name or Path(self.path).name or name_of(files)
        if train.x.shape[1:] != test.x.shape[1:]:
            raise ValueError(
                f"{name}: training images are {train.x.shape[1:]}, test images "
                f"{test.x.shape[1:]} (channels, height, width); they must be alike"
            )
        check_parts(train, test)
        if labels.names and not _class_names(features_of(files[TRAIN][0]), self.label):
            refuse_classes_only_in_test(train, test, labels.names)
        kind = labels.class_type
        names = labels.names
        return Dataset(name, train, test, labels.num_classes, names, class_type=kind)

    @property
    def _splits(self) -> list[str]:
        return _needed_splits(self.test, self.test_share)

    def _found_files(self) -> Files:
        if self.path:
            return choose_files(data_root() / self.path, self._splits)
        return self.files or _places[self.content]

    def _verify(self, files: Files) -> None:
        for file in (file for split in files.values() for file in split):
            if not Path(file).is_file():
                raise ValueError(
                    f"{file} is missing; put it back, or make the source anew"
                )
        if content_of_files(files) != self.content:
            raise ValueError(
                f"the files of {name_of(files)} ({next(iter(files.values()))[0]}, ...) have "
                "changed since the source was made; put the old ones back, or make the "
                "source anew by fl.from_parquet, which is another run"
            )

    def _labels(self, files: Files) -> Targets:
        """Check the columns of all files, and read the labels, without any image."""
        first = files[TRAIN][0]
        for split in self._splits:
            for file in files[split]:
                _check_kinds(file, self.image, self.label, self.client)
        parts = [
            _joined_column(files[split], self.label, True) for split in self._splits
        ]
        names = _class_names(features_of(first), self.label)
        return read_labels(parts, self.target, names, first)


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
    standardise: bool | tuple[float, float] = False,
    **options: Any,
) -> ParquetImages | InMemory:
    """Make a dataset of Parquet files as Hugging Face lays them out.

    Images are decoded when a sweep needs them; the bytes of the files identify the
    data. A table without images is read at once, as `from_pandas` reads it. In both
    cases the place of the files is no part of a run's id.

    Args:
        path: the folder, in which `train-00000-of-00002.parquet`, `test.parquet` and so
            on lie, or in a folder below such as `data/`; or the files; or the files of
            each split by its name. A relative path is looked up in the current folder,
            and then in the folder RAYSAFL_DATA.
        image: the column of the images; by default the only one that holds images.
        label: the column of the target; by default the one with the name "label", or
            else the only one that the metadata call a class.
        test: the split that is the test set; "validation" if you mean that one.
        test_share: in place of a test split, the fraction of the training samples that
            is kept for testing.
        standardise: see `ImageSource`; of a table, True standardises each feature.
        options: `client`, `target`, `seed` and `name`, and of a table `features`, see
            `from_pandas`; of images also `low` and `high`, what the pixel values 0 and
            255 become.

    Returns:
        A source for `Federation(dataset=...)`.

    Raises:
        ValueError: files, shards or columns are missing, or it is unclear which are
            meant; the message names those that are there.
    """
    files = _given_files(path, _needed_splits(test, test_share))
    first = files[TRAIN][0]
    schema = _schema(first)
    metadata = features_of(first)
    if image is None and features is None:
        image = _find_image(schema, metadata, first)
    if label is None:
        label = _find_label(schema, metadata, first)
    options |= {"test_share": test_share, "standardise": standardise}
    if image is None:
        if not isinstance(standardise, bool):
            raise ValueError(
                "standardise must be True or False for a table, whose features are "
                f"standardised one by one, not {standardise!r}"
            )
        options |= {"features": features, "client": client}
        if isinstance(label, str):
            options.setdefault("names", _class_names(metadata, label))
        train, *others = map(_read_table, files.values())
        return from_pandas(
            train, label=label, test=others[0] if others else None, **options
        )
    if features is not None:
        raise ValueError(
            f"features={features!r} are columns of a table, and image={image!r} is one of "
            "images; leave out one of the two"
        )
    if not isinstance(label, str):
        raise ValueError(f"images have one label column, but label={label!r}")
    source = ParquetImages(
        files=files,
        content=content_of_files(files),
        image=image,
        label=label,
        client=tuple(as_list(client)),
        test=test,
        **options,
    )
    return source.replace(num_classes=source._labels(files).num_classes)


def _read_table(files: Sequence[str]) -> "pd.DataFrame":
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


def _needed_splits(test: str, test_share: float | None) -> list[str]:
    """Return the splits that are read: one that is divided, or that for testing too."""
    if test_share is None and test == TRAIN:
        raise ValueError(
            f"test='{TRAIN}' would make the training samples the test set; give test= the "
            "name of another split, or test_share=0.2"
        )
    return [TRAIN] if test_share is not None else [TRAIN, test]


def split_of(file: Path) -> str:
    """Return the split that a Parquet file belongs to, by its name or its folder's."""
    shard = SHARD.fullmatch(file.stem)
    if shard:
        return shard["split"]
    return file.parent.name if file.stem.isdigit() else file.stem


def choose_files(folder: Path, splits: Sequence[str]) -> Files:
    """Find the files of some splits in a folder.

    Raises:
        ValueError: there are none of a split, or a shard is missing.
    """
    found: Files = {}
    for file in sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]):
        found.setdefault(split_of(file), []).append(str(file))
    for split in splits:
        if split not in found:
            raise ValueError(_no_split(folder, split, found))
        _check_shards(folder, found[split])
    return {split: found[split] for split in splits}


def _no_split(folder: Path, split: str, found: Files) -> str:
    """Say that a folder has no files of a split."""
    there = ", ".join(sorted(found)[:SHOWN]) or "no Parquet files"
    advice = "for another folder, set RAYSAFL_DATA or give an absolute path"
    if not found and any(folder.rglob("*.arrow")):
        advice = (
            "Hugging Face's save_to_disk wrote this folder; write Parquet instead: "
            "load_from_disk(...)['train'].to_parquet('FOLDER/train.parquet'), and test "
            "likewise"
        )
    elif not found and any(folder.rglob("*.parquet")):
        advice = "its Parquet files lie deeper: give the folder of one dataset"
    elif found and split != TRAIN:
        advice = f"give test= the name of another split, or test_share=0.2; {advice}"
    return (
        f"{folder / f'{split}.parquet'} is missing, and so are shards such as "
        f"{split}-00000-of-00001.parquet ({folder} has: {there}); {advice}"
    )


def _check_shards(folder: Path, files: Sequence[str]) -> None:
    """Check that files are all of a split, and of one dataset.

    Raises:
        ValueError: shards are missing, or there are files of another dataset too.
    """
    folders = {Path(file).parent for file in files}
    shards = [SHARD.fullmatch(Path(file).stem) for file in files]
    counts = {int(shard["count"]) if shard else 1 for shard in shards}
    # Files without a count are those of a folder `train/`, or a single one.
    is_whole = not any(shards) or counts == {len(files)}
    if len(folders) == 1 and is_whole:
        return
    names = ", ".join(str(Path(file).relative_to(folder)) for file in files[:SHOWN])
    raise ValueError(
        f"{folder} has {counted(len(files), 'shard')} of a split of {max(counts)}: "
        f"{names}; shards are missing, or there are others' too. Give the folder of one "
        "dataset, or the files by path={'train': [...], 'test': [...]}"
    )


def _given_files(path: Any, splits: Sequence[str]) -> Files:
    """Return the files of the splits that are needed.

    Raises:
        ValueError: some are missing.
    """
    files: Files = {}
    if isinstance(path, Mapping):
        for split, own in path.items():
            files[str(split)] = [str(find_path(file)) for file in as_list(own)]
    elif isinstance(path, str | Path):
        place = find_path(path)
        if place.is_dir():
            return choose_files(place, splits)
        files[TRAIN] = [str(place)]
    else:
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


def name_of(files: Files) -> str:
    """Return the name of the folder in which files lie; `data` is none."""
    folder = Path(files[TRAIN][0]).parent
    return folder.parent.name if folder.name == "data" else folder.name


def content_of_files(files: Files) -> str:
    """Return the SHA-256 of files, in order."""
    sha = hashlib.sha256()
    for split, own in files.items():
        for file in own:
            try:
                with open(file, "rb") as content:
                    digest = hashlib.file_digest(content, "sha256").hexdigest()
            except OSError as error:
                raise ValueError(f"{file} cannot be read ({error})") from error
            sha.update(f"{split} {digest}\n".encode())
    return sha.hexdigest()


# --- what is in a file


def _schema(file: str) -> "pa.Schema":
    # Imported here, because most data are in no Parquet file.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file} is not a Parquet file ({error})") from error


def features_of(file: str) -> Metadata:
    """Return what Hugging Face's metadata say of each column; nothing without them."""
    metadata = _schema(file).metadata or {}
    try:
        info = json.loads(metadata.get(b"huggingface", b"{}"))
        found = info.get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _class_names(metadata: Metadata, label: str) -> list[str] | None:
    """Return the names of the classes of a column; None if the metadata give none."""
    names = metadata.get(label, {}).get("names")
    return names if isinstance(names, list) else None


def _find_image(schema: "pa.Schema", metadata: Metadata, place: str) -> str | None:
    """Return the only column that holds images; None if there is none.

    Args:
        schema: the columns and their types.
        metadata: what Hugging Face knows of them.
        place: how a message calls the file.

    Raises:
        ValueError: there are several.
    """
    found = [
        str(name)
        for name in schema.names
        if metadata.get(name, {}).get("_type") == "Image"
        or _is_image_struct(schema.field(name).type)
    ]
    if len(found) > 1:
        raise ValueError(
            f"{place} has several columns of images ({', '.join(found)}); say which one "
            "by image="
        )
    return found[0] if found else None


def _find_label(schema: "pa.Schema", metadata: Metadata, place: str) -> str:
    """Return the column `label`, or the only column of classes; see `_find_image`.

    Raises:
        ValueError: there is neither.
    """
    if "label" in schema.names:
        return "label"
    kinds = {name: metadata.get(name, {}).get("_type") for name in schema.names}
    found = [str(name) for name, kind in kinds.items() if kind == "ClassLabel"]
    if len(found) == 1:
        return found[0]
    raise ValueError(
        f"{place} has no column 'label' (it has: {', '.join(schema.names)}); say which "
        "one is the target by label="
    )


def _is_image_struct(kind: "pa.DataType") -> bool:
    from pyarrow.types import is_struct

    return bool(is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _check_kinds(file: str, image: str, label: str, client: Sequence[str]) -> None:
    """Check that the columns are there and of a type that can be read.

    Raises:
        ValueError: one is missing, or images or labels are of another type.
    """
    from pyarrow.types import is_binary, is_large_binary, is_nested

    schema = _schema(file)
    for name in (image, label, *client):
        if name not in schema.names:
            there = ", ".join(schema.names)
            close = closest(name, schema.names)
            hint = f": did you mean '{close}'?" if close else ""
            raise ValueError(f"{file} has no column '{name}' (it has: {there}){hint}")
    kind = schema.field(image).type
    if not is_binary(kind) and not is_large_binary(kind) and not _is_image_struct(kind):
        raise ValueError(
            f"{file}: '{image}' must be a struct with 'bytes', or encoded bytes; the "
            f"column is {kind}"
        )
    kind = schema.field(label).type
    if is_nested(kind):
        raise ValueError(
            f"{file}: the label '{label}' is {kind}; give a column with one value a sample"
        )


def _read_column(file: str, name: str) -> "pa.ChunkedArray":
    import pyarrow.parquet as pq

    return pq.read_table(file, columns=[name])[name]


def _joined_column(files: Sequence[str], name: str, complete: bool = False) -> Array:
    """Return a column of several files as one array; text and categories as objects.

    Raises:
        ValueError: a value is missing where all must be there (`complete`).
    """
    from pyarrow.types import is_dictionary

    parts = []
    for file in files:
        column = _read_column(file, name)
        if complete and column.null_count:
            raise ValueError(f"{file} has rows without an image or a label")
        if is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        parts.append(column.to_pandas().to_numpy())
    return np.concatenate(parts)


def _decoded(files: Sequence[str], image: str) -> NDArray[np.uint8]:
    """Decode all images of a split to [n, channels, height, width].

    Raises:
        ValueError: an image is missing, cannot be decoded, or has another shape.
    """
    images: list[NDArray[np.uint8]] = []
    for file in files:
        column = _read_column(file, image)
        if column.null_count:
            raise ValueError(f"{file} has rows without an image or a label")
        for row, value in enumerate(column.to_pylist()):
            pixels = _decode(value, file, row)
            if images and pixels.shape != images[0].shape:
                shapes = sorted({pixels.shape, images[0].shape})
                raise ValueError(f"{file} mixes image shapes {shapes}; make them alike")
            images.append(pixels)
    # Colour images are transposed views, and a stack of such views is not contiguous.
    return np.ascontiguousarray(np.stack(images))


def _decode(value: Any, file: str, row: int) -> NDArray[np.uint8]:
    """Decode one image to [channels, height, width] with one or three channels."""
    from PIL import Image

    content = value["bytes"] if isinstance(value, dict) else value
    if content is None:
        raise ValueError(f"{file}: row {row} does not hold the bytes of an image")
    try:
        return pixels_of(Image.open(io.BytesIO(content)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{file}: an image cannot be decoded (row {row}: {error})"
        ) from error
