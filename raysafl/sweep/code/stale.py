"""What becomes of results whose code the user has edited since they were computed."""

from collections.abc import Mapping
from enum import StrEnum

from raysafl.core.text import nearest


class Stale(StrEnum):
    """What becomes of runs whose code has changed: run again, keep them, or refuse."""

    RERUN = "rerun"
    KEEP = "keep"
    FAIL = "fail"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(
            f"stale='{value}' is none of the choices: {nearest(str(value), cls)}"
        )


def changed_classes(
    stored: Mapping[str, str] | None, today: Mapping[str, str]
) -> list[str]:
    """Return the classes whose code differs from the code that made a result.

    Args:
        stored: the digest of each class that made the result, by name; None if it was
            made before digests were stored, which counts as no change.
        today: the digest of each class of the same run today.
    """
    if stored is None:
        return []
    names = {*stored, *today}
    return sorted(name for name in names if stored.get(name) != today.get(name))
