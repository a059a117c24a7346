"""Text with natural users: a play, one user per speaker."""

import re

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.problem import Dataset, Samples
from raysafl.data.sources import Source, data_root

Ints = NDArray[np.int64]
HEAD = re.compile(r"([A-Z][^\n:]{0,40}):(?:\n|$)")  # `SPEAKER:` alone on a speech's first line


class Shakespeare(Source):
    """Shakespeare, next-character prediction, a user per speaker (Caldas et al. 2018, LEAF).

    A sample is `length` characters of one speaker, as indices into the text's sorted
    vocabulary; its label is the character that follows. The users are the `speakers` with most
    text, numbered in the order of their entrance (FAST: 139 of them, length 80). Each speaker's
    speeches are joined by line breaks; the last `test` of the text is for the test set, and no
    sample reaches over the cut.

    Chosen here, open in FAST: a sample starts every `stride` characters (LEAF: every one, then
    subsampled); 20 % are for the test; spellings of a name that differ in case or spaces are one
    speaker. LEAF tells a name's plays apart, a bare text cannot.
    """

    speakers: int = Field(default=139, gt=0)
    length: int = Field(default=80, gt=0)
    stride: int = Field(default=8, gt=0)
    test: float = Field(default=0.2, gt=0, lt=1)
    file: str = "shakespeare/input.txt"

    def load(self) -> Dataset:
        """x int64 [n, length], y int64 [n], and the speaker of each sample."""
        path = data_root() / self.file
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: a play text with `SPEAKER:` lines and an empty line after "
                "each speech (for example github.com/karpathy/char-rnn, "
                "data/tinyshakespeare/input.txt). Put it there, set RAYSAFL_DATA, or give file=..."
            )
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error})") from error
        vocabulary = sorted(set(text))
        number = {letter: i for i, letter in enumerate(vocabulary)}
        parts: list[list[tuple[Ints, Ints, Ints]]] = [[], []]
        for user, words in enumerate(self._chosen(text)):
            codes = np.array([number[letter] for letter in words], np.int64)
            cut = self._cut(len(codes))
            for part, piece in zip(parts, (codes[:cut], codes[cut:]), strict=True):
                x, y = self._windows(piece)
                part.append((x, y, np.full(len(y), user)))
        train, test = (
            Samples(x, y, users=users)
            for x, y, users in (map(np.concatenate, zip(*part, strict=True)) for part in parts)
        )
        return Dataset("shakespeare", train, test, len(vocabulary), tuple(vocabulary))

    def _cut(self, characters: int) -> int:
        return characters - int(characters * self.test)

    def _chosen(self, text: str) -> list[str]:
        """The text of each speaker chosen, in the order of entrance."""
        said = list(speeches(text).values())
        sizes = np.array([len(words) for words in said])
        order = np.argsort(-sizes, kind="stable")[: self.speakers]
        enough = [
            n for n in sizes.tolist() if min(self._cut(n), n - self._cut(n)) > self.length
        ]  # for a sample in either part
        if len(enough) < self.speakers:
            raise ValueError(
                f"{self.file} has {len(said)} speakers, {len(enough)} of them with text enough "
                f"for length = {self.length} and test = {self.test}, but speakers = "
                f"{self.speakers}; lower speakers or length"
            )
        return [said[i] for i in sorted(order.tolist())]

    def _windows(self, codes: Ints) -> tuple[Ints, Ints]:
        windows = np.lib.stride_tricks.sliding_window_view(codes, self.length + 1)[:: self.stride]
        return windows[:, :-1].copy(), windows[:, -1].copy()


def speeches(text: str) -> dict[str, str]:
    """Speaker (capitals, single spaces) to all they say, speeches joined by line breaks."""
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
