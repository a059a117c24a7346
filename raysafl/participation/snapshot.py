"""Snapshots: rounds in which the server enforces uniform participation (FAST)."""

from typing import Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.participation import Cohort, Participation
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Key


class Snapshot(Participation):
    """Some rounds are enforced to be uniform, the others follow `base` (FAST, algorithms 1, 2).

    Which rounds r are enforced, by exactly one of

    - `every` = I: those with r mod I = 0 (algorithm 1), noted as q = 1/I;
    - `snapshot_prob` = q: each with probability q, independently (algorithm 1);
    - `adapt` = lambda: each with probability q_r, where q_0 = 0 and, with acc_r the training
      accuracy (a fraction) of round r's cohort (algorithm 2; the paper's default lambda is 1),

        q_{r+1} = min(1, max(0, q_r + lambda (acc_{r-1} - acc_r))),    q_1 = 0.

    Algorithm 2 prints both accuracies in one variable; this is what its text says. `base` moves
    on in snapshot rounds too: who is able to come follows time, not whether somebody asked.

    The paper does not say whose training accuracy acc_r is. `accuracy` chooses: what the
    cohort saw on its batches while it trained ("local", which costs nothing, and which a round
    in which no client trained leaves, and so q, as it was); or, after every round, what the new
    global model gets right, of the cohort's samples ("cohort") or of all clients' ("clients",
    an evaluation of the whole training set each round). docs/reproduction.md compares them.

    The state holds both policies' states, q and the last accuracy.
    """

    base: SerializeAsAny[Participation]
    uniform: SerializeAsAny[Participation]
    every: int | None = Field(default=None, gt=0)
    snapshot_prob: float | None = Field(default=None, ge=0, le=1, alias="q")
    adapt: float | None = Field(default=None, ge=0)
    accuracy: Literal["local", "cohort", "clients"] = Field(
        default="local",
        exclude_if=lambda value: value == "local",  # the field came later: ids stay
    )

    @model_validator(mode="after")
    def _one_schedule(self) -> "Snapshot":
        if [self.every, self.snapshot_prob, self.adapt].count(None) != 2:
            raise ValueError("give every=..., snapshot_prob=... or adapt=..., exactly one of them")
        if isinstance(self.base, Snapshot) or isinstance(self.uniform, Snapshot):
            raise ValueError("a Snapshot inside a Snapshot: give the policies it is made of")
        return self

    def check(self, num_clients: int) -> None:
        """Both policies can serve the clients."""
        self.base.check(num_clients)
        self.uniform.check(num_clients)

    def init(self) -> Any:
        """Before round 0."""
        return {
            "base": self.base.init(),
            "uniform": self.uniform.init(),
            "q": 1 / self.every if self.every is not None else self.snapshot_prob or 0.0,
            "accuracy": None,
        }

    def measured_on(self, cohort: list[int]) -> list[int] | None:
        """As `accuracy` says."""
        return {"local": None, "cohort": cohort, "clients": [EVERYONE]}[self.accuracy]

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """One cohort of the two."""
        q = self._q(state["q"], state["accuracy"], accuracy)
        if self.every is not None:
            enforced = key.round % self.every == 0
        else:
            enforced = bool(key("snapshot").random() < q)
        base, arbitrary = self.base.pick(state["base"], num_clients, key, accuracy)
        uniform, drawn = self.uniform.pick(state["uniform"], num_clients, key, accuracy)
        after = {"base": base, "uniform": uniform, "q": q, "accuracy": accuracy}
        ids = drawn.ids if enforced else arbitrary.ids
        return after, Cohort(ids, enforced, snapshot_prob=q)

    def _q(self, q: float, before: float | None, now: float | None) -> float:
        """Algorithm 2, line 5."""
        if self.adapt is None or before is None or now is None:
            return q
        return min(1.0, max(0.0, q + self.adapt * (before - now)))
