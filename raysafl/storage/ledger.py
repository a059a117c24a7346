"""The ledger: how each run ended, when, where, and with which software."""

import datetime
import json
import warnings
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from raysafl.core.component import explain
from raysafl.core.text import redacted


class Status(StrEnum):
    """How a run ended, from the best way to the worst."""

    # All rounds were run.
    FINISHED = "finished"
    # Tune's scheduler ended the run early.
    STOPPED = "stopped"
    # a replicate's parameters became infinite or NaN.
    DIVERGED = "diverged"
    # An error ended the run.
    FAILED = "failed"

    @property
    def decided(self) -> bool:
        """Whether another attempt would end in the same way, so that none is made."""
        return self is not Status.FAILED

    @property
    def bad(self) -> bool:
        """Whether the run gives no final accuracy because something went wrong in it."""
        return self in (Status.DIVERGED, Status.FAILED)


class ReplicateEnd(BaseModel):
    """How one replicate of a run ended.

    Args:
        replicate: the number of the replicate, from 0.
        status: how it ended.
        reason: why, if it diverged.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    replicate: int
    status: Status
    reason: str = ""


class Seeds(BaseModel):
    """The part of a run's configuration that says which replicates it has.

    Args:
        replicates: the number of replicates.
        seed: the seed of replicate 0; replicate r has `seed + r`.
    """

    replicates: int = Field(default=1, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**62)


class LedgerEntry(BaseModel):
    """How a run ended. Stored as JSON in the ledger of the sweep (docs/results.md).

    Only `status` is required. Fields that were not given are not written, and further
    fields that an entry has on disk are kept, so reading and writing an entry changes
    nothing.

    Args:
        status: how the run ended.
        reason: why, if it did not finish.
        config: the run's configuration as JSON values; empty if it could not be built.
        ended: when the entry was made, in UTC (ISO 8601).
        replicates: how each replicate ended; empty if all ended as the run did.
        metrics: the last evaluated round, as reported to Tune.
        started: when the run started, in UTC (ISO 8601).
        seconds: wall time of the run over all attempts.
        python, raysafl, host, torch, ray, commit, device, engine: with what and where
            it ran.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    status: Status
    reason: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    ended: str = ""
    replicates: list[ReplicateEnd] = Field(default_factory=list)
    metrics: dict[str, Any] = Field(default_factory=dict)
    started: str = ""
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    python: str = ""
    raysafl: str = ""
    host: str = ""
    torch: str = ""
    ray: str = ""
    commit: str = ""
    device: str = ""
    engine: str = ""

    @field_validator("config")
    @classmethod
    def _has_sensible_seeds(cls, config: dict[str, Any]) -> dict[str, Any]:
        Seeds.model_validate(config)
        return config

    @property
    def seeds(self) -> Seeds:
        """Which replicates the run has."""
        return Seeds.model_validate(self.config)

    @classmethod
    def now(
        cls,
        config: Mapping[str, Any] | None,
        status: Status,
        reason: str = "",
        **more: Any,
    ) -> Self:
        """Make the entry of a run that ends at this moment.

        Args:
            config: the run's configuration as JSON values; None if it could not be
                built.
            status: how the run ended.
            reason: why; credentials in URIs are removed from it.
            more: further fields, such as `replicates`, `metrics`, `seconds` and the
                origin.
        """
        ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        fields = {"config": dict(config or {}), "ended": ended, **more}
        return cls(status=status, reason=redacted(reason), **fields)

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Read an entry.

        Raises:
            ValueError: the content is no JSON object, or a field has a wrong value.
        """
        return cls.from_fields(json.loads(content))

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """Check parsed JSON and make an entry of it.

        Raises:
            ValueError: it is no object, or a field has a wrong value.
        """
        # A lone surrogate is valid in JSON, but it can be written neither to a file nor
        # to Parquet.
        json.dumps(fields, ensure_ascii=False).encode()
        return cls.model_validate(fields)

    def content(self) -> dict[str, Any]:
        """Return what is stored: the fields that were given, as JSON values."""
        return self.model_dump(exclude_unset=True) | {"status": self.status.value}

    def to_json(self) -> str:
        """Write the entry as one line of JSON."""
        return json.dumps(self.content())


def readable_entry(content: bytes, source: str) -> LedgerEntry | None:
    """Read an entry; None, with a warning that names its source, if it is damaged."""
    try:
        return LedgerEntry.from_json(content)
    except (ValueError, RecursionError) as error:
        why = explain(error) if isinstance(error, ValidationError) else error
        warnings.warn(f"{source} cannot be read and is left out: {why}", stacklevel=3)
        return None
