"""participation."""

from abc import abstractmethod
from typing import Any, ClassVar

from raysafl.core.component import Component
from raysafl.core.randomness import Key as Key


class Participation(Component):
    """A policy: who comes at round `key.round`. It never sees parameters or algorithms."""

    abstract: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        """Raise ValueError if the policy cannot serve this many clients."""

    def init(self) -> Any:
        """The policy's state (JSON-like) before round 0."""
        return None

    def note(self, state: Any) -> tuple[float | None, bool]:
        """After `pick`: the probability q of an enforced round, and whether this one was."""
        return None, False

    def measured_on(self, cohort: list[int]) -> list[int] | None:
        """Whose samples the new parameters' accuracy is measured on; None: as the cohort trains."""
        return None

    @abstractmethod
    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, list[int]]:
        """The new state and this round's cohort: distinct client ids, sorted, never empty.

        `accuracy`: training accuracy, of the last cohort or as `measured_on` says (None before).
        """
