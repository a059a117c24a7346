"""work."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from raysafl.core.algorithm import LocalTraining, Update
from raysafl.core.randomness import Key as Key


class Task(NamedTuple):
    """One local training: the unit of compute."""

    replicate: int
    client: int
    w_P: Tensor
    sgd: LocalTraining
    seed: int
    round: int
    call: int  # the how-many-th request of this round, so that no two draw the same batches
    offset_P: Tensor | None
    prox: float
    mean: bool = False  # give the mean over the replicate's tasks in place of this one's row


Scores: TypeAlias = dict[int, tuple[float, float]]


class Work(Protocol):
    """What a simulation asks of the machine: in one process, or on Ray actors."""

    def init(self) -> list[Tensor]:
        """The initial parameters w_P of each replicate."""

    def sizes(self) -> list[tuple[list[int], int]]:
        """How many samples each client and the server hold, in each replicate."""

    def train(self, tasks: Sequence[Task]) -> Update:
        """Train all tasks, of any clients and replicates; rows in the order given.

        Tasks with `mean` have one row per replicate in delta_MP, where its first one stands.
        """

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Have each replicate's parameters evaluated; call what is returned for the scores.

        Training may be asked for in between: the scores are those of the parameters given.
        """

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """What share of some clients' training samples each replicate's parameters get right."""
