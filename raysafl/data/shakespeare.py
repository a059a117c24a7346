"""Shakespeare's plays as a text dataset whose users are the speakers."""

import re

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.problem import Dataset
from raysafl.data.sources import Source, data_root, samples_of_users

Ints = NDArray[np.int64]
# A speech begins with a line that holds nothing but `SPEAKER:`.
HEAD = re.compile(r"([A-Z][^\n:]{0,40}):(?:\n|$)")


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
