"""Learning-rate schedules: how the learning rate changes from round to round.

A schedule gives a factor for each round, by which `LocalTraining.lr` is multiplied. So
`lr` stays one number, which a sweep can vary.
"""

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt, SerializeAsAny

from raysafl.core.component import Component


class RateSchedule(Component):
    """A rule for the learning rate of each round; subclasses define `factor`.

    Example:
        >>> class Harmonic(RateSchedule):
        ...     def factor(self, round):
        ...         return 1 / (1 + round)
        >>> from raysafl.core.algorithm import LocalTraining
        >>> local = LocalTraining(lr=0.2, batch_size=8, epochs=1, schedule=Harmonic())
        >>> local.rate(0), local.rate(3)
        (0.2, 0.05)
    """

    abstract: ClassVar[bool] = True

    @abstractmethod
    def factor(self, round: int) -> float:
        """Return what `lr` is multiplied by in a round, counted from 0."""

    def over(self, rounds: int) -> Self:
        """Return this schedule for a run of that many rounds.

        It is the schedule itself, unless it depends on the number of rounds and does
        not say it.
        """
        return self


class CosineRate(RateSchedule):
    """The learning rate falls along half a cosine, from `lr` to `end * lr`.

        factor(t) = end + (1 - end) (1 + cos(pi t / rounds)) / 2      for t < rounds

    From round `rounds` on it is `end`. This is `CosineAnnealingLR` of torch, with one
    step of the scheduler per round, T_max = rounds and eta_min = end * lr.

    Source: Loshchilov and Hutter 2017, ICLR, equation 5 without restarts
    (docs/papers.md#sgdr).

    Example:
        >>> schedule = CosineRate(rounds=4)
        >>> [round(schedule.factor(t), 3) for t in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """

    rounds: int | None = Field(
        default=None,
        gt=0,
        description="number of rounds until the end; None: the rounds of the run",
    )
    end: float = Field(
        default=0.0, ge=0, le=1, description="the factor at the end, from 0 to 1"
    )

    def factor(self, round: int) -> float:
        """Return the factor of the equation above.

        Raises:
            ValueError: the number of rounds is not known.
        """
        if self.rounds is None:
            raise ValueError(
                "CosineRate(rounds=None) falls over the rounds of a run, and there is "
                "no run here; give rounds=..., or take schedule.over(rounds)"
            )
        progress = min(round / self.rounds, 1.0)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * progress)) / 2

    def over(self, rounds: int) -> Self:
        """Return this schedule with the number of rounds filled in, if there is none."""
        return self.replace(rounds=rounds) if self.rounds is None else self


class WarmUpRate(RateSchedule):
    """The learning rate rises linearly to `lr`, and then follows another schedule.

        factor(t) = (t + 1) / rounds            for t < rounds
        factor(t) = then.factor(t - rounds)     afterwards; 1 without `then`

    The first part is `LinearLR` of torch with start_factor = 1 / rounds and
    total_iters = rounds - 1.

    Source: Goyal et al. 2017, section 2.2, "gradual warmup" (docs/papers.md#warmup).

    Example:
        >>> [WarmUpRate(rounds=4).factor(t) for t in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    rounds: int = Field(gt=0, description="number of rounds in which the rate rises")
    then: SerializeAsAny[RateSchedule] | None = Field(
        default=None,
        description="the schedule of the rounds after; None: the rate stays",
    )

    def factor(self, round: int) -> float:
        """Return the factor of the equations above."""
        if round < self.rounds:
            return (round + 1) / self.rounds
        return 1.0 if self.then is None else self.then.factor(round - self.rounds)

    def over(self, rounds: int) -> Self:
        """Return this schedule, with `then` for the rounds that follow the warm-up."""
        if self.then is None:
            return self
        return self.replace(then=self.then.over(max(1, rounds - self.rounds)))


class StepRate(RateSchedule):
    """The learning rate is multiplied by `decay` at each milestone.

        factor(t) = decay^(number of milestones <= t)

    This is `MultiStepLR` of torch with one step of the scheduler per round. FAST halves
    the rate from round 5,000 on (docs/papers.md#fast).

    Example:
        >>> [StepRate(milestones=[2, 4]).factor(t) for t in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    milestones: list[PositiveInt] = Field(
        min_length=1,
        description="rounds from which on the learning rate decays once more",
    )
    decay: float = Field(
        default=0.5, gt=0, description="factor of the learning rate at each milestone"
    )

    def factor(self, round: int) -> float:
        """Return the factor of the equation above."""
        return self.decay ** sum(start <= round for start in self.milestones)


class ListedRate(RateSchedule):
    """The factors of the first rounds are listed; the last one stays.

    With `lr=1`, the factors are the learning rates themselves.

    Example:
        >>> [ListedRate(factors=[1, 1, 0.5]).factor(t) for t in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.5]
    """

    factors: list[Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="one factor for each round, from round 0 on"
    )

    def factor(self, round: int) -> float:
        """Return the listed factor, or the last one after the end of the list."""
        return self.factors[min(round, len(self.factors) - 1)]
