"""What a participation policy is: it decides which clients take part in each round.

Once a round, before any training, the simulation calls `Participation.pick` for each
replicate (or `pick_all` for several at once) and hands the cohort to the algorithm. A
policy knows the clients by number and name, the round and the seed, but neither the
model's parameters nor the algorithm. Runs that share a seed therefore see the same
cohorts under every algorithm, and differences between their results come from the
algorithms alone. (The only feedback is a training accuracy, for policies that adapt to
it, such as FAST's.)
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from raysafl.core.component import Component, is_users_class
from raysafl.core.randomness import Key, Keys

# How many clients times replicates a policy picks from at once at most: the draws for more
# would fill the memory.
MOST_TOGETHER = 10_000_000


@dataclass(frozen=True)
class Cohort:
    """The clients that take part in one round, and how they were chosen.

    Args:
        ids: The client ids, from 0 to num_clients - 1: distinct, in ascending order.
            Without any, no client participates in this round.
        enforced: Whether the server enforced this cohort (a snapshot round of FAST).
            Policies that are uniform in every round count each of their rounds as
            enforced, so that FAST's ratio of rounds without enforcement is 0 % for
            plain FedAvg.
        enforce_prob: The probability with which this round was enforced (FAST's q), or
            None for policies that have no such probability.

    Example:
        >>> Cohort([2, 5, 7])
        Cohort(ids=[2, 5, 7], enforced=False, enforce_prob=None)
    """

    ids: list[int]
    enforced: bool = False
    enforce_prob: float | None = None


class Cohorts(NamedTuple):
    """The cohorts of several replicates in one round.

    Args:
        ids: The client ids of all cohorts, replicate after replicate, each in the order in
            which a `Cohort` has them.
        count_R: How many clients each replicate's cohort has.
        enforced_R: Whether the server enforced each cohort, see `Cohort`.
        enforce_prob_R: The probability with which each round was enforced; NaN in place of
            None.
    """

    ids: NDArray[np.int64]
    count_R: NDArray[np.int64]
    enforced_R: NDArray[np.bool_]
    enforce_prob_R: NDArray[np.float64]

    @classmethod
    def of(cls, cohorts: Sequence[Cohort]) -> "Cohorts":
        """Return some cohorts together."""
        probs = [own.enforce_prob for own in cohorts]
        return cls(
            np.array([i for own in cohorts for i in own.ids], np.int64),
            np.array([len(own.ids) for own in cohorts]),
            np.array([own.enforced for own in cohorts]),
            np.array([np.nan if prob is None else prob for prob in probs]),
        )

    def lists(self) -> list[list[int]]:
        """Return the ids of each cohort."""
        ids = self.ids.tolist()
        stops = np.cumsum(self.count_R).tolist()
        return [ids[start:stop] for start, stop in pairwise([0, *stops])]


class Participation(Component):
    """A policy that chooses the clients of each round; subclasses define `pick`.

    Example:
        >>> class TurnTaking(Participation):
        ...     def pick(self, state, num_clients, key, accuracy):
        ...         return state, Cohort(list(range(key.round % 2, num_clients, 2)))
        >>> _, cohort = TurnTaking().pick(None, 6, Key(seed=0, round=3), None)
        >>> cohort.ids
        [1, 3, 5]
    """

    abstract: ClassVar[bool] = True
    _memory: ClassVar[str] = (
        "What a policy remembers belongs in the state that `pick` returns beside the cohort"
    )

    def check(self, num_clients: int) -> None:
        """Raise a ValueError if the policy cannot serve this number of clients."""

    def for_clients(self, names: Callable[[], Sequence[str]]) -> Self:
        """Return the policy that picks among the clients of a dataset.

        It is called before the first `pick`. Policies that go by ids return themselves.

        Args:
            names: Returns the name of each client, in the order of their ids; nothing if
                clients have no names.

        Raises:
            ValueError: The policy names a client that does not exist.
        """
        parts = (own for own in self if isinstance(own[1], Participation))
        inner = {field: part.for_clients(names) for field, part in parts}
        return self.model_copy(update=inner) if inner else self

    @property
    def uses_accuracy(self) -> bool:
        """Whether `pick` goes by the training accuracy, which the objective must have."""
        return False

    def init(self) -> Any:
        """Return the policy's state before round 0.

        It must come back from JSON as it was: the keys of dictionaries are texts.
        """
        return None

    def measured_on(self, cohort: list[int]) -> list[int] | None:
        """Return the clients on whose samples the accuracy given to `pick` is measured.

        After the round, the new global model is evaluated on the training samples of
        these clients ([EVERYONE] means all clients). With None, nothing is evaluated:
        the accuracy is then the one that the cohort saw on its mini-batches while it
        trained.
        """
        return None

    @property
    def goes_by_passes(self) -> bool:
        """Whether the accuracy given to `pick` is the mean of running accuracies.

        Each client of the cohort has one: the share of the samples that it classified
        correctly while it trained, since its present pass over its data began. Only
        `ContinuedTraining` in steps has such passes.
        """
        return False

    @abstractmethod
    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """Choose the clients of round `key.round`.

        Args:
            state: What the call for the round before returned, or `init()` in round 0.
            num_clients: The number of all clients; ids go from 0 to num_clients - 1.
            key: The source of randomness for this seed and round.
            accuracy: A training accuracy (a fraction), measured as `measured_on` says;
                None before any client has trained, and if the objective has none.

        Returns:
            The policy's new state, for which the same holds as for `init`'s, and the
            cohort.
        """

    def pick_all(
        self,
        states: Sequence[Any],
        num_clients: int,
        keys: Keys,
        accuracies: Sequence[float | None],
    ) -> tuple[list[Any], Cohorts] | None:
        """Choose the clients of several replicates in a round, each as `pick` does.

        Only raysafl's own policies do so: what it returns is not checked.

        Args:
            states: The state of each replicate.
            num_clients: The number of all clients.
            keys: The sources of randomness of all replicates in this round.
            accuracies: The training accuracy of each replicate.

        Returns:
            The new state of each replicate, and the cohorts; None: `pick` is to be asked
            for one replicate after another.
        """
        return None


class PicksTogether(Participation):
    """A policy of raysafl's own: one method draws the cohorts of one or more replicates.

    It goes by no accuracy.
    """

    abstract: ClassVar[bool] = True

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """Choose the clients of round `key.round`."""
        keys = Keys(np.array([key.seed], np.uint64), key.round)
        (after,), (ids, _, enforced_R, _) = self.choose([state], num_clients, keys)
        return after, Cohort(ids.tolist(), bool(enforced_R[0]))

    def pick_all(
        self,
        states: Sequence[Any],
        num_clients: int,
        keys: Keys,
        accuracies: Sequence[float | None],
    ) -> tuple[list[Any], Cohorts] | None:
        """Choose the clients of several replicates in a round.

        It returns None if a subclass of the user's may pick in another way, and if the
        draws for so many clients would fill the memory.
        """
        if is_users_class(type(self)) or len(states) * num_clients > MOST_TOGETHER:
            return None
        return self.choose(states, num_clients, keys)

    @abstractmethod
    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Choose as `pick_all` does, for any number of clients."""
