"""Damage to files: bits that flip, ends that are lost, files that change places."""

import shutil
from pathlib import Path

import numpy as np

Rng = np.random.Generator


def flip_a_bit(file: Path, rng: Rng) -> None:
    """Change one bit of a file that is not empty."""
    content = bytearray(file.read_bytes())
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


def truncate(file: Path, rng: Rng) -> None:
    """Cut a file that is not empty."""
    content = file.read_bytes()
    file.write_bytes(content[: rng.integers(len(content))])


def exchange(file: Path, rng: Rng) -> None:
    """Let a file and another one of its folder change places; flip a bit if it is alone."""
    beside = sorted(f for f in file.parent.glob("[!.]*") if f.is_file() and f != file)
    if not beside:
        return flip_a_bit(file, rng)
    other, between = beside[rng.integers(len(beside))], file.with_name(".between")
    shutil.move(file, between)
    shutil.move(other, file)
    shutil.move(between, other)
