"""How long rounds would take on the clients' devices, and who reports in time.

The clock is virtual: it follows from the configuration and the seed alone.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raysafl.core.component import Component
from raysafl.core.participation import Cohorts
from raysafl.core.randomness import Key, Keys
from raysafl.core.record import ColumnDescription, Summary

Floats = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]
Numbers = Positive | list[Positive]
# The fields that hold a number for each client.
NUMBERS = ("step_seconds", "bytes_down_per_second", "bytes_up_per_second")
COLUMN = ColumnDescription(
    "float64",
    "seconds since the replicate's previous row that the rounds would have taken on the clients' "
    "devices",
    Summary.SUM,
    total="virtual seconds of the run",
)


class Devices(Component):
    """The clients' devices: how long rounds take on them, and who reports in time.

    A client that takes K local steps, is sent D bytes and sends U bytes takes

        t = D / bytes_down_per_second + K * step_seconds + U / bytes_up_per_second

    seconds. Each number is one for all clients, or a list with one for each. With `spread`,
    it is lognormal: client i's is multiplied by exp(spread * z) with z ~ N(0, 1), which
    depends on the seed, the field and i.

    Whether a client reports is decided before it trains, by the t of the run's local
    training and one vector of parameters each way. It does not if it drops out, or if
    t > `deadline`. Of the others the server takes the first `report` ones (of equal t, those
    that the policy names first). All others leave the cohort.

    A round takes the time of its slowest client; at least `deadline`, if fewer clients report
    than the server waits for, which is `report`, or the whole cohort if that is smaller; and
    `deadline`, or 0, if nobody participates. If an algorithm asks clients several times in a
    round, each request waits for its slowest client, and the times are added. They are those
    of the bytes that a request declares, which may be more or less than a vector each way.
    Training of the server and samples that it shares take no time. An algorithm selects among
    those that report (`Selected`, `F3AST`, `CAFed`, `FedLaAvg`), so the server also waits for
    late clients that it would not select.

    Source: Bonawitz et al. 2019 for deadline, over-selection and dropouts
    (docs/papers.md#bonawitz); FedScale for the clock (docs/papers.md#fedscale). Bonawitz et
    al. abandon a round in which too few clients report; here it uses those that did.

    Raises:
        ValueError: There is a `dropout` without a `deadline`.

    Example:
        >>> import raysafl as fl
        >>> from raysafl.quickstart import BASE
        >>> slow = fl.Devices(step_seconds=[0.1] * 9 + [4.0], deadline=30.0)
        >>> "virtual_seconds" in fl.simulate(BASE.replace(devices=slow, rounds=2))
        True
    """

    step_seconds: Numbers = Field(
        description="seconds of a local step: a number for all clients, or one for each"
    )
    bytes_down_per_second: Numbers | None = Field(
        default=None,
        description="bytes that a client is sent in a second; None: no limit",
    )
    bytes_up_per_second: Numbers | None = Field(
        default=None,
        description="bytes that a client sends in a second; None: no limit",
    )
    spread: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="standard deviation of each number's logarithm",
    )
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="probability that a client drops out"
    )
    deadline: float | None = Field(
        default=None, gt=0, description="seconds that the server waits; None: no limit"
    )
    report: int | None = Field(
        default=None, gt=0, description="reports that the server waits for; None: all"
    )

    @model_validator(mode="after")
    def _fits(self) -> "Devices":
        if self.dropout and self.deadline is None:
            raise ValueError(
                f"dropout={self.dropout} needs a deadline: a server cannot tell a client "
                "that drops out from a slow one; give deadline=..., in seconds"
            )
        return self

    @classmethod
    def from_table(cls, file: str | Path, **others: Any) -> Self:
        """Return the devices that a CSV or Parquet file lists, which is not needed later.

        Args:
            file: A file with a row for each client: its id from 0 in the column `client`,
                and its numbers in columns that are called like the fields.
            others: The other fields.

        Raises:
            ValueError: The file is no such table, or has a column that `others` has too.
        """
        # Imported here, because pandas takes some tenths of a second to import.
        import pandas as pd

        path = Path(file).expanduser()
        try:
            frame = (pd.read_parquet if path.suffix == ".parquet" else pd.read_csv)(
                path
            )
            frame = frame.set_index("client").sort_index()
        # A damaged file may raise any kind of error.
        except Exception as error:
            raise ValueError(
                f"{file} is no CSV or Parquet table with a column 'client': {error}"
            ) from error
        if list(frame.index) != list(range(len(frame))):
            raise ValueError(
                f"{file} has {len(frame)} rows, so its column 'client' must have each id "
                f"from 0 to {len(frame) - 1} once"
            )
        if twice := others.keys() & set(frame):
            raise ValueError(
                f"{file} has the columns {sorted(twice)}, which are given as arguments too: "
                "leave out one of the two"
            )
        return cls(**{str(n): own.tolist() for n, own in frame.items()}, **others)

    def seconds(
        self,
        seeds_T: NDArray[np.uint64],
        clients_T: NDArray[np.int64],
        steps_T: NDArray[np.int64],
        bytes_2: tuple[int, int],
    ) -> Floats:
        """Return the t of tasks, [T], that are each sent and send so many bytes."""
        ids = clients_T.tolist()
        seconds_T = np.zeros(len(ids))
        for name, bytes_1 in zip(NUMBERS, (None, *bytes_2), strict=True):
            own = getattr(self, name)
            if own is None:
                continue
            number_T = np.array([own[i] for i in ids] if isinstance(own, list) else own)
            if self.spread:
                pairs = zip(seeds_T.tolist(), ids, strict=True)
                factors = [_lognormal(seed, name, i, self.spread) for seed, i in pairs]
                number_T = number_T * np.array(factors)
            seconds_T += steps_T * number_T if bytes_1 is None else bytes_1 / number_T
        return seconds_T

    def reporting(
        self, picked: Cohorts, keys: Keys, seconds_T: Floats
    ) -> tuple[Cohorts, NDArray[np.bool_]]:
        """Return who of some cohorts, of T clients together, reports.

        Returns:
            The cohorts of those that report, and whether fewer do than the server waits
            for, or nobody was picked, [R].
        """
        count_R = picked.count_R
        row_T = np.repeat(np.arange(len(count_R)), count_R)
        reports_T = seconds_T <= (self.deadline or math.inf)
        if self.dropout:
            pairs = zip(keys.seeds_R[row_T].tolist(), picked.ids.tolist(), strict=True)
            draws = [Key(seed, keys.round)("drop-out", i).random() for seed, i in pairs]
            reports_T &= np.array(draws) >= self.dropout
        wanted_R = np.minimum(count_R, self.report or count_R)
        # The sort is stable, so clients that take equally long stay in the cohort's order.
        order_T = np.lexsort((seconds_T, ~reports_T, row_T))
        last_R = np.cumsum(count_R) - count_R + wanted_R
        reports_T &= np.argsort(order_T) < last_R[row_T]
        left_R = np.bincount(row_T[reports_T], minlength=len(count_R))
        cohorts = picked._replace(ids=picked.ids[reports_T], count_R=left_R)
        return cohorts, (left_R < wanted_R) | (count_R == 0)


# Of each client of a cohort the factor is asked for in every round.
@lru_cache(maxsize=2**17)
def _lognormal(seed: int, field: str, client: int, spread: float) -> float:
    """Return the lognormal factor of a client's number."""
    return math.exp(spread * Key(seed)(f"device {field}", client).standard_normal())
