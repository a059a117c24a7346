"""The ledger: how each run ended, when, where, and with which software."""

import datetime
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from raysafl.storage.integrity import RowSum
from raysafl.storage.redaction import redacted


class Status(StrEnum):
    """How a run ended, from the best way to the worst, or that it has not."""

    # All rounds were run, or the run stopped before, as its own configuration says.
    FINISHED = "finished"
    # Tune's scheduler ended the run early.
    STOPPED = "stopped"
    # A replicate's parameters became infinite or NaN.
    DIVERGED = "diverged"
    # An error ended the run.
    FAILED = "failed"
    # It ended, but not all that it wrote is there. This status stands in no file of the
    # ledger: it is found when rows, models and ledger are read together.
    DAMAGED = "damaged"
    # It has begun and not ended. A process writes to the folder, or none does. These too
    # stand in no file of the ledger.
    RUNNING = "running"
    INTERRUPTED = "interrupted"

    @property
    def decided(self) -> bool:
        """Whether another attempt would end in the same way, so that none is made."""
        return self in (Status.FINISHED, Status.STOPPED, Status.DIVERGED)

    @property
    def unended(self) -> bool:
        """Whether the run has not ended."""
        return self in (Status.RUNNING, Status.INTERRUPTED)

    @property
    def bad(self) -> bool:
        """Whether the run gives no final accuracy because something went wrong."""
        return self in (Status.DIVERGED, Status.FAILED, Status.DAMAGED)


class ReplicateEnd(BaseModel):
    """How one replicate of a run ended.

    Args:
        replicate: the number of the replicate, from 0.
        status: how it ended.
        reason: why, if it diverged or stopped before the last round.
        partition_seed: the seed of its partition; None if that was not stored.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    replicate: int
    status: Status
    reason: str = ""
    partition_seed: int | None = None


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
        traceback: the whole traceback of the error that ended it, without secrets.
        config: the run's configuration as JSON values; empty if it could not be built.
        ended: when the entry was made, in UTC (ISO 8601).
        replicates: how each replicate ended; empty if all ended as the run did.
        metrics: the last evaluated round, as reported to Tune.
        started: when the run started, in UTC (ISO 8601).
        seconds: wall time of the run over all attempts.
        kept: the SHA-256 of the file with the models that the run kept; empty if it
            kept none.
        kept_bytes: the number of bytes of this file.
        code: a digest of the code of each of the user's own classes in the run, by
            name; None in entries made before it was stored.
        sums: for each table, by the name of its folder, and each replicate, the number
            of the rows that the run wrote and their digest. `Journal.commit` fills it.
        grown_from: the ids of the runs whose replicates were reused; they may have been
            computed with other software, elsewhere.
        over_before: how many rounds, of all replicates together, were over before the
            attempt in which it ended.
        python, raysafl, host, numpy, torch, ray, commit, device, engine: with what and where
            it ran.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    status: Status
    reason: str = ""
    traceback: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    ended: str = ""
    replicates: list[ReplicateEnd] = Field(default_factory=list)
    metrics: dict[str, Any] = Field(default_factory=dict)
    started: str = ""
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    kept: str = ""
    kept_bytes: int | None = Field(default=None, ge=0)
    code: dict[str, str] | None = None
    sums: dict[str, dict[int, RowSum]] = Field(default_factory=dict)
    grown_from: list[str] = Field(default_factory=list)
    over_before: int = Field(default=0, ge=0)
    python: str = ""
    raysafl: str = ""
    host: str = ""
    numpy: str = ""
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

    def ends(self) -> list[ReplicateEnd | Self]:
        """Return how each replicate has ended: as the run, if nothing else is known."""
        own = {end.replicate: end for end in self.replicates}
        return [own.get(r, self) for r in range(self.seeds.replicates)]

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
            reason: why; secrets of the environment are hidden in it.
            more: further fields, such as `replicates`, `metrics`, `seconds` and the
                origin; secrets are hidden in those that are text.
        """
        ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        fields = {"ended": ended, "reason": reason, **more}
        shown = {k: redacted(v) if isinstance(v, str) else v for k, v in fields.items()}
        return cls(status=status, config=dict(config or {}), **shown)

    def damaged(self, why: str) -> Self:
        """Return the entry as it is shown when not all that the run wrote is there.

        Args:
            why: what is missing or differs.
        """
        reason = f"{why}; the run counts nowhere until `raysafl run` computes it anew"
        changes = {"status": Status.DAMAGED, "reason": reason, "replicates": []}
        return self.model_copy(update=changes)

    @classmethod
    def unended(cls, about: Mapping[str, Any], status: Status) -> Self:
        """Return the entry as which a run is shown that has not ended.

        Args:
            about: what its file says of it.
            status: `running` or `interrupted`.
        """
        config = about.get("config", {})
        over = about.get("rounds_over", 0) // Seeds.model_validate(config).replicates
        return cls(
            status=status,
            reason=f"after {over} of {config.get('rounds', 0)} rounds",
            config=config,
            started=about.get("started", ""),
            seconds=about.get("spent"),
            code=about.get("code"),
        )

    def content(self) -> dict[str, Any]:
        """Return what is stored: the fields that were given, as JSON values."""
        return self.model_dump(exclude_unset=True) | {"status": self.status.value}


def parsed_json(content: bytes | str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is no JSON, or has text that cannot be written again.
    """
    text = content if isinstance(content, str) else content.decode()
    fields = json.loads(text)
    # A lone surrogate is valid in JSON, where it is written as an escape, but it can be
    # written neither to a file nor to Parquet.
    if "\\u" in text:
        json.dumps(fields, ensure_ascii=False).encode()
    return fields
