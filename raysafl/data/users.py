"""Datasets whose users are known: Shakespeare's speakers, FEMNIST's writers, synthetic ones."""

import json
import re
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.client_indices import Ints
from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key
from raysafl.data.sources import ImageSource, Source, data_root

# A speech begins with a line that holds nothing but `SPEAKER:`.
HEAD = re.compile(r"([A-Z][^\n:]{0,40}):(?:\n|$)")
# LEAF numbers digits first, then capitals, then small letters.
NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIDE = 28
# A writer's images [n, 1, 28, 28] and their classes [n].
Written = tuple[NDArray[np.uint8], NDArray[np.int64]]
# Of the synthetic data.
DIMENSION = 60
CLASSES = 10


def samples_of_users(users: Sequence[Sequence[tuple[Any, Any]]]) -> list[Samples]:
    """Put the samples of all users together, which are numbered in this order.

    Args:
        users: for each user its inputs and targets, (x, y), for training, and those for
            testing.

    Returns:
        The samples for training and those for testing.
    """
    parts = []
    for pairs in zip(*users, strict=True):
        x, y = map(np.concatenate, zip(*pairs, strict=True))
        sizes = [len(own) for _, own in pairs]
        parts.append(Samples(x, y, users=np.repeat(np.arange(len(users)), sizes)))
    return parts


class Shakespeare(Source):
    """Shakespeare's plays: predict the next character; each speaker is one user.

    A sample is `length` consecutive characters of one speaker, as indices into the
    sorted vocabulary of the text; its label is the character that follows. The users
    are the `speakers` with the most text, numbered in the order of their first speech.
    The speeches of a speaker are joined by line breaks, and their last part is for the
    test set; no sample reaches over the cut.

    Source: FAST, with 139 speakers (docs/papers.md#fast), after LEAF, which has the
    length 80 (docs/papers.md#leaf). FAST leaves open the following, which is chosen here: a
    sample starts every `stride` characters (in LEAF at every character, then
    subsampled); 20 % of the text is for testing; spellings of a name that differ in
    case or spaces are one speaker. LEAF tells speakers of equal name in different plays
    apart, which a bare text does not allow.
    """

    speakers: int = Field(default=139, gt=0, description="Number of users.")
    length: int = Field(default=80, gt=0, description="Characters per sample.")
    stride: int = Field(
        default=8, gt=0, description="Characters between the starts of samples."
    )
    test: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Fraction of each speaker's text for testing.",
    )
    file: str = Field(
        default="shakespeare/input.txt",
        description="The text; a relative path is looked up in the folder RAYSAFL_DATA.",
    )

    def load(self) -> Dataset:
        """Return x int64 [S, length], y int64 [S], and the speaker of each sample.

        Raises:
            ValueError: the file is missing or no UTF-8 text, or too few speakers have
                enough text.
        """
        path = data_root() / self.file
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: a play text with `SPEAKER:` lines and an empty line after "
                "each speech (for example github.com/karpathy/char-rnn, "
                "data/tinyshakespeare/input.txt). Put it there, set RAYSAFL_DATA, or give file=..."
            )
        text = path.read_text("utf-8")
        vocabulary = sorted(set(text))
        number = {letter: i for i, letter in enumerate(vocabulary)}
        users = []
        for words in self._chosen(text):
            codes = np.array([number[letter] for letter in words], np.int64)
            cut = self._cut(len(codes))
            users.append((self._windows(codes[:cut]), self._windows(codes[cut:])))
        train, test = samples_of_users(users)
        return Dataset("shakespeare", train, test, len(vocabulary), tuple(vocabulary))

    def _cut(self, characters: int) -> int:
        """Return how many of a speaker's characters are for training."""
        return characters - int(characters * self.test)

    def _chosen(self, text: str) -> list[str]:
        """Return the text of each chosen speaker, in the order of their first speech."""
        said = list(speeches(text).values())
        sizes = np.array([len(words) for words in said])
        order = np.argsort(-sizes, kind="stable")[: self.speakers]
        # A speaker needs enough text for one sample in either part.
        enough = [
            n
            for n in sizes.tolist()
            if min(self._cut(n), n - self._cut(n)) > self.length
        ]
        if len(enough) < self.speakers:
            raise ValueError(
                f"{self.file} has {len(said)} speakers, {len(enough)} of them with enough text "
                f"for length = {self.length} and test = {self.test}, but speakers = "
                f"{self.speakers}; lower speakers or length"
            )
        return [said[i] for i in sorted(order.tolist())]

    def _windows(self, codes: Ints) -> tuple[Ints, Ints]:
        """Cut a text into samples: their characters, and the character that follows each."""
        windows = np.lib.stride_tricks.sliding_window_view(codes, self.length + 1)[
            :: self.stride
        ]
        return windows[:, :-1].copy(), windows[:, -1].copy()


def speeches(text: str) -> dict[str, str]:
    """Map each speaker to the text of all their speeches, joined by line breaks.

    Names are written in capitals with single spaces, so that spellings that differ in
    case or spaces are one speaker.
    """
    said: dict[str, list[str]] = {}
    speaker = None
    for block in re.split(r"\n\s*\n", text.strip()):
        head = HEAD.match(block)
        if head:
            speaker = " ".join(head[1].upper().split())
            block = block[head.end() :]
        if speaker is not None and block.strip():
            said.setdefault(speaker, []).append(block.strip())
    return {name: "\n".join(parts) for name, parts in said.items()}


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


class Synthetic(Source):
    """Linear classification of users that differ from one another: alpha and beta.

    User k has the labels y = argmax(W_k x + b_k) with W_k, b_k ~ N(u_k, 1) and u_k ~
    N(0, alpha). Its inputs are x ~ N(v_k, Sigma) with Sigma_jj = j^-1.2, v_k ~ N(B_k, 1)
    and B_k ~ N(0, beta), so beta says how different their inputs are. User k has
    50 + floor(exp(N(4, 2))) samples, of which the last 10 % are for testing.

    alpha is the authors' parameter, but it changes no sample: all entries of W_k and b_k
    have the same mean u_k, which adds u_k (sum_j x_j + 1) to each of the ten outputs, and
    so leaves the largest where it is. The users' models differ as much for alpha = 0.

    Source: Li et al. 2020 (docs/papers.md#fedprox). As in the authors' code, alpha and
    beta are standard deviations; their text can be read as variances.
    """

    alpha: float = Field(
        default=1.0,
        ge=0,
        description="Spread of the users' mean weights, which changes no sample.",
    )
    beta: float = Field(default=1.0, ge=0, description="Spread of the users' inputs.")
    users: int = Field(default=30, gt=0, description="Number of users.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the data.")

    def load(self) -> Dataset:
        """Return x float32 [S, 60], y int64 [S] in 10 classes, and the user of each sample."""
        deviation = np.arange(1, DIMENSION + 1) ** -0.6
        users = []
        for user in range(self.users):
            rng = Key(self.seed)("synthetic", user)
            size = 50 + int(rng.lognormal(4, 2))
            u = rng.normal(0, self.alpha)
            W = rng.normal(u, 1, (DIMENSION, CLASSES))
            b = rng.normal(u, 1, CLASSES)
            v = rng.normal(rng.normal(0, self.beta), 1, DIMENSION)
            x = v + deviation * rng.standard_normal((size, DIMENSION))
            y = (x @ W + b).argmax(axis=1)
            # The first 90 % of a user's samples are for training.
            cut = int(0.9 * size)
            x = x.astype(np.float32)
            users.append(((x[:cut], y[:cut]), (x[cut:], y[cut:])))
        train, test = samples_of_users(users)
        return Dataset("synthetic", train, test, num_classes=CLASSES)
