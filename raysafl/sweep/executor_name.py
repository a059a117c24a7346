"""The names of the executors, for options that are read before anything is imported."""

from enum import StrEnum


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
