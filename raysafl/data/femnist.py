"""FEMNIST, handwritten letters and digits whose users are the writers, from LEAF's files."""

import json
import string
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.data.sources import ImageSource, data_root, samples_of_users

# LEAF numbers digits first, then capitals, then small letters.
NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIDE = 28
# A writer's images [n, 1, 28, 28] and their classes [n].
Written = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Femnist(ImageSource):
    """FEMNIST: handwritten digits and letters [1, 28, 28] in 62 classes, by writer.

    It reads the JSON files that LEAF's `preprocess.sh` makes. By default these are those
    in `all_data`, which hold all samples: max(1, floor((1 - test) n)) of each writer's n
    samples are drawn for training. With `test=None`, LEAF's own division is read, from
    the folders `train` and `test`. Writers are numbered in the order of their names, and
    `ByUser` makes a client of each.

    An input of 1 is white paper, and ink is dark; in `Emnist` an input of 1 is ink. The
    files hold multiples of 1/255, which are stored as uint8.

    Source: LEAF (docs/papers.md#leaf), whose program draws as many samples for training,
    but leaves out writers with a single sample.
    """

    path: str = Field(
        default="femnist",
        description="The folder of LEAF's folders; a relative path is looked up in the "
        "folder RAYSAFL_DATA.",
    )
    test: float | None = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Fraction of each writer's samples for testing; None: LEAF's division.",
    )

    def read(self) -> Dataset:
        """Return x uint8 [S, 1, 28, 28], y int64 [S], and the writer of each sample.

        Raises:
            ValueError: files are missing, or are not LEAF's.
        """
        folder = data_root() / self.path
        if self.test is None:
            parts = [_read_writers(folder / part) for part in ("train", "test")]
            nothing = (np.empty((0, 1, SIDE, SIDE), np.uint8), np.empty(0, np.int64))
            names = sorted({*parts[0], *parts[1]})
            users = [[part.get(name, nothing) for part in parts] for name in names]
        else:
            users = []
            written = sorted(_read_writers(folder / "all_data").items())
            for user, (_, (x, y)) in enumerate(written):
                order = Key(0)("femnist test", user).permutation(len(y))
                cut = max(1, int((1 - self.test) * len(y)))
                rows = (np.sort(order[:cut]), np.sort(order[cut:]))
                users.append([(x[own], y[own]) for own in rows])
        train, test = (replace(part, scale=1 / 255) for part in samples_of_users(users))
        return Dataset("femnist", train, test, len(NAMES), NAMES)


def _read_writers(folder: Path) -> dict[str, Written]:
    """Read what each writer wrote from all JSON files of a folder.

    Raises:
        ValueError: there are none, or one of them is not LEAF's.
    """
    written: dict[str, Written] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text())
            for name in content["users"]:
                own = content["user_data"][name]
                y = np.array(own["y"], np.int64)
                shades = 255 * np.array(own["x"], np.float64).reshape(len(y), SIDE**2)
                x = shades.clip(0, 255).round().astype(np.uint8)
                if not np.allclose(x, shades, rtol=0, atol=0.01):
                    raise ValueError("x must hold multiples of 1/255 from 0 to 1")
                written[name] = (x.reshape(-1, 1, SIDE, SIDE), y)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is not a file of LEAF's FEMNIST ({error!r})"
            ) from error
    if not written:
        raise ValueError(
            f"{folder} holds no samples: make its JSON files by LEAF's "
            "data/femnist/preprocess.sh (github.com/TalwalkarLab/leaf), set RAYSAFL_DATA, or "
            "give path=. FEMNIST in Parquet is read by fl.from_parquet"
        )
    return written
