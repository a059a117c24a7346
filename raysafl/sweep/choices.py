"""What a person chooses who runs a sweep, for options that are read before all else."""

from enum import StrEnum

from raysafl.core.text import nearest

# Seconds between two checkpoints, and so about the most work that a crash loses.
FLUSH_SECONDS = 30.0


class ExecutorName(StrEnum):
    """Who carries out the runs of a sweep.

    Members:
        AUTO: this process if all of the work takes less time than Ray takes to start,
            and nothing is asked for that only Ray has; Ray otherwise.
        HERE: this process, without Ray.
        RAY: trials of Ray Tune with client actors.
    """

    AUTO = "auto"
    HERE = "here"
    RAY = "ray"


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
