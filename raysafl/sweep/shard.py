"""A sweep in parts that need not know of each other, as the tasks of a job array have them."""

import re
from collections.abc import Iterable


def parse_shard(shard: str) -> tuple[int, int]:
    """Return which part is meant by a text such as `3/8`, and how many parts there are.

    Raises:
        ValueError: it is not of this form, or there is no such part.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    part, parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= part <= parts:
        raise ValueError(
            "shard (--shard) takes a part, counted from 1, and the number of parts, such as "
            f"3/8, not '{shard}'; a job array of 8 tasks is --array=1-8"
        )
    return part, parts


def in_shard(run_ids: Iterable[str], shard: str) -> list[str]:
    """Return the ids of the runs that belong to a part of the sweep.

    The id of a run alone says to which of the parts it belongs. So each run belongs to one
    part, whatever else is in the sweep, and parts have about equally many runs.

    Args:
        run_ids: the ids, which are hexadecimal numbers.
        shard: a text such as `3/8`: the third of eight parts.

    Raises:
        ValueError: there is no such part.
    """
    part, parts = parse_shard(shard)
    return [run_id for run_id in run_ids if int(run_id, 16) % parts == part - 1]
