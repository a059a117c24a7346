"""Numbers of bytes and seconds as people write them."""

from collections.abc import Callable

import pytest

from raysafl.core.text import closest, duration, format_bytes


@pytest.mark.parametrize(
    ("write", "number", "words"),
    [
        (format_bytes, 0, "0 B"),
        (format_bytes, 999, "999 B"),
        (format_bytes, 999.7, "1 kB"),
        (format_bytes, 3_400_000, "3.4 MB"),
        (format_bytes, 1.5e9, "1.5 GB"),
        (format_bytes, 2e15, "2e+03 TB"),
        (duration, 41.26, "41.3 s"),
        (duration, 59.97, "1 min 0 s"),
        (duration, 12000, "3 h 20 min"),
    ],
)
def test_numbers_read_well(
    write: Callable[[float], str], number: float, words: str
) -> None:
    assert write(number) == words


def test_only_a_near_name_is_suggested() -> None:
    known = ["eval_clients", "clients", "half_life"]
    assert closest("halflife", known) == "half_life"
    assert closest("halflife", known[:2]) == ""
    assert closest("rl", ["lr", "local"]) == "lr"
    assert closest("LR", ["rl", "lr"]) == "lr"
    assert closest("21", ["12", "30"]) == ""
    assert closest("clients_per_round", known[:2]) == "clients"
