"""ledger."""

import datetime
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from raysafl.core.text import redacted


class Ended(BaseModel):
    """How a run, or one replicate of it, ended."""

    status: Literal["finished", "diverged", "stopped", "failed"]
    reason: str = ""


class Replicate(Ended):
    """How one replicate ended."""

    replicate: int


class Seeds(BaseModel):
    """What of a ledger entry's configuration tells how many rows a run has."""

    replicates: int = Field(default=1, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**62)


class Ending(Ended):
    """What a ledger entry must hold at least to be used; it may hold more (docs/results.md)."""

    config: Seeds = Field(default_factory=Seeds)
    replicates: list[Replicate] = Field(default_factory=list)
    metrics: dict[str, Any] = Field(default_factory=dict)
    started: str = ""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)


DECIDED = ("finished", "diverged", "stopped")  # ends that another try would not change


def ended(
    config: Mapping[str, Any] | None, status: str, reason: str, **more: Any
) -> dict[str, Any]:
    """Make a ledger entry of a run's configuration, which is None if it could not be built."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "status": status,
        "reason": redacted(reason),
        "config": dict(config or {}),
        "ended": now,
        **more,
    }
