"""A learning rate of the server that changes over the rounds."""

from collections.abc import Sequence
from typing import Self, cast

from pydantic import Field, SerializeAsAny, model_validator

from raysafl.algorithms.bases import Around
from raysafl.algorithms.fedavg import FedAvg, global_rate
from raysafl.core.algorithm import Round, Setting, State
from raysafl.core.randomness import Key
from raysafl.core.rates import RateSchedule


class ScheduledServer(Around):
    """An algorithm whose server learning rate follows a schedule over the rounds.

    Round t, counted from 0, is a round of `inner` with the rate

        inner.lr * schedule.factor(t)

    The schedules are those of the clients' rate. Inside SAFARI and FSL it changes the
    client rounds alone.

    Raises:
        ValueError: The inner algorithm has no server rate `lr`.

    Example:
        >>> import raysafl as fl
        >>> halved = fl.training.StepRate(milestones=[30])
        >>> fl.algorithms.ScheduledServer(inner=fl.FedAvg(lr=1.0), schedule=halved).inner.lr
        1.0
    """

    schedule: SerializeAsAny[RateSchedule] = Field(
        description="How its `lr` changes over the rounds, such as CosineRate()."
    )

    @model_validator(mode="after")
    def _has_a_rate(self) -> "ScheduledServer":
        if "lr" not in type(self.inner).model_fields:
            raise ValueError(
                f"{type(self.inner).__name__} has no server rate `lr`; take another inner "
                "algorithm, or put ScheduledServer inside it"
            )
        return self

    def prepare(self, setting: Setting) -> Self:
        """Return this algorithm for the rounds of the run.

        Raises:
            ValueError: The rate of the last round is not above 0.
        """
        schedule = self.schedule.over(setting.rounds)
        if not schedule.factor(setting.rounds - 1) > 0:
            raise ValueError(
                f"the server's learning rate of the last of {setting.rounds} rounds is not "
                f"above 0; change schedule={self.schedule!r}"
            )
        return super().prepare(setting).replace(schedule=schedule)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Run a round of the inner algorithm with the rate of this round."""
        lr = global_rate(cast(FedAvg, self.inner).lr, ids)
        # Where the rate is that of the cohort's size, an empty cohort does not use it.
        rate = lr * self.schedule.factor(key.round) or None
        return (yield from self.inner.replace(lr=rate).turn(state, ids, key))
