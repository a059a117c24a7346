"""Data of one's own by Hugging Face's library `datasets`: whatever it can read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysafl.data.in_memory import InMemory
from raysafl.data.own_arrays import from_arrays, pixels_of
from raysafl.data.own_tables import as_list, find_path
from raysafl.data.parquet import (
    TRAIN,
    class_names,
    find_image,
    find_label,
    from_frames,
    needed_splits,
)


def from_datasets(
    data: Any,
    *,
    image: str | None = None,
    label: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    client: str | Sequence[str] | None = None,
    test: str = "test",
    test_share: float | None = None,
    standardise: bool = False,
    **options: Any,
) -> InMemory:
    """Make a dataset of one of Hugging Face's library `datasets`.

    It needs the extra `pip install 'raysafl[datasets]'`. The samples are read once, in
    this call. Their digest identifies the data, and the place they come from does not.

    Args:
        data: a `DatasetDict`, a `Dataset` (with `test_share`), or a local folder in any
            layout that `datasets.load_dataset` reads, such as a folder of images for
            each class, Parquet, Arrow or JSON. A relative path is looked up in the
            current folder, and then in the folder RAYSAFL_DATA.
        image, label, features, client, test, test_share: see `from_parquet`.
        standardise: see `from_arrays`.
        options: more arguments of `from_pandas`, or of `from_arrays` for images, such
            as `target`, `seed` and `name`.

    Returns:
        A source for `Federation(dataset=...)`.

    Raises:
        ValueError: a split or a column is missing, it is unclear which is meant, images
            differ in shape, or the library is not installed or cannot read the folder.
    """
    splits = _loaded(data) if isinstance(data, str | Path) else data
    if not isinstance(splits, Mapping):
        splits = {TRAIN: splits}
    needed = needed_splits(test, test_share)
    for split in needed:
        if split not in splits:
            raise ValueError(
                f"the dataset has no split '{split}' (it has: {', '.join(splits)}); give "
                "test= the name of another split, or test_share=0.2"
            )
    parts = [splits[split] for split in needed]
    for part in parts:
        if not hasattr(part, "features") or not hasattr(part, "__len__"):
            raise ValueError(
                "data must be a DatasetDict or a Dataset of the library datasets, which "
                f"is not streamed, or a local folder, not {type(part).__name__}"
            )
    schema = parts[0].features.arrow_schema
    metadata = parts[0].features.to_dict()
    if image is None and features is None:
        image = find_image(schema, metadata, "the dataset")
    if label is None:
        label = find_label(schema, metadata, "the dataset")
    options |= {"test_share": test_share, "standardise": standardise}
    if image is None:
        frames = [part.to_pandas() for part in parts]
        return from_frames(
            frames, metadata, label=label, features=features, client=client, **options
        )
    blocks = [_block(part, image, label, as_list(client)) for part in parts]
    x, y, clients = blocks[0]
    names = class_names(metadata, str(label))
    held_out = blocks[1] if len(blocks) > 1 else None
    return from_arrays(x, y, clients=clients, test=held_out, names=names, **options)


def _loaded(folder: str | Path) -> Any:
    """Read a local folder by the library."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            "Hugging Face's library datasets is not installed, and from_datasets needs "
            "it to read a folder: pip install 'raysafl[datasets]'"
        ) from error
    place = find_path(folder)
    try:
        return load_dataset(str(place))
    except Exception as error:
        raise ValueError(
            f"{place} cannot be read by the library datasets: {error}"
        ) from error


def _block(part: Any, image: str, label: Any, client: list[str]) -> tuple[Any, ...]:
    """Return the images, the labels and the client columns of a split."""
    for name in (image, label, *client):
        if name not in part.column_names:
            known = ", ".join(part.column_names)
            raise ValueError(f"the dataset has no column '{name}' (it has: {known})")
    images = [pixels_of(picture) for picture in part[image]]
    shapes = sorted({pixels.shape for pixels in images})
    if len(shapes) > 1:
        raise ValueError(
            f"the images have the shapes {', '.join(map(str, shapes))} (channels, "
            "height, width); make them alike"
        )
    columns = {name: np.asarray(part[name][:]) for name in client}
    return np.stack(images), np.asarray(part[label][:]), columns
