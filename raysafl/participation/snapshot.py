"""Snapshots: rounds in which the server enforces uniform participation."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.component import is_users_class
from raysafl.core.participation import Cohort, Cohorts, Participation
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Key, Keys
from raysafl.participation.sampling import uniforms


class Snapshot(Participation):
    """Some rounds are snapshots with enforced uniform participation; the others follow `base`.

    Exactly one of three fields says which rounds r are snapshots:

    - `every` = I: the rounds with r mod I = 0 (algorithm 1); `enforce_prob` of
      each round is then 1 / I;
    - `snapshot_prob` = q: each round with probability q, independently (algorithm 1);
    - `adapt` = lambda: round r with probability q_r (algorithm 2), where q_0 = q_1 = 0 and

          q_{r+1} = min(1, max(0, q_r + lambda (acc_{r-1} - acc_r)))

      with acc_r the training accuracy (a fraction) after round r.

    `base` moves on in snapshot rounds too: who is available follows time, and does not
    depend on whether the server asked. The state holds the states of both policies, the
    probability of this round and the last accuracy.

    Source: FAST, algorithms 1 and 2 (docs/papers.md#fast); the paper's default lambda
    is 1, and here `adapt` must be given. The paper's algorithm 2 writes Delta both for the
    last accuracy and for the difference of two. It does not say whose training accuracy
    acc_r is, so `accuracy` chooses; in the code of its authors it is that of "pass".
    """

    base: SerializeAsAny[Participation] = Field(
        description="Policy of the rounds that are no snapshots."
    )
    uniform: SerializeAsAny[Participation] = Field(
        description="Policy of the snapshots."
    )
    every: int | None = Field(
        default=None,
        gt=0,
        description="Number of rounds from one snapshot to the next.",
    )
    snapshot_prob: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Probability of a snapshot (the paper's q).",
    )
    adapt: float | None = Field(
        default=None, ge=0, description="Strength lambda of the adaptive probability."
    )
    accuracy: Literal["local", "pass", "cohort", "clients"] = Field(
        default="local",
        description="Whose training accuracy adapts the probability: that of the cohort's "
        'batches while it trained ("local", free of cost); the mean over the cohort of '
        'each client\'s own since its present pass over its data began ("pass", free '
        "too, for `ContinuedTraining` in steps); or after each round that of the "
        "new global model on the cohort's samples (\"cohort\") or on all clients' "
        '("clients").',
    )

    @model_validator(mode="after")
    def _one_schedule(self) -> "Snapshot":
        if [self.every, self.snapshot_prob, self.adapt].count(None) != 2:
            raise ValueError(
                "give every=..., snapshot_prob=... or adapt=..., exactly one of them"
            )
        for kind in (type(self.base), type(self.uniform)):
            told = (kind.measured_on, kind.goes_by_passes)
            if told != (Participation.measured_on, Participation.goes_by_passes):
                raise ValueError(
                    f"a Snapshot cannot contain a {kind.__name__}, which says itself whose "
                    "accuracy it goes by (measured_on or goes_by_passes), as the Snapshot's "
                    "`accuracy` does; give other policies as base and uniform"
                )
        return self

    def check(self, num_clients: int) -> None:
        """Raise ValueError if one of the two policies cannot serve this many clients."""
        self.base.check(num_clients)
        self.uniform.check(num_clients)

    @property
    def uses_accuracy(self) -> bool:
        """Whether the probability follows an accuracy, or one of the two policies needs one."""
        return (
            self.adapt is not None
            or self.accuracy != "local"
            or self.base.uses_accuracy
            or self.uniform.uses_accuracy
        )

    def init(self) -> Any:
        """Return the state before round 0."""
        prob = self.snapshot_prob or 0.0 if self.every is None else 1 / self.every
        return _state(self.base.init(), self.uniform.init(), prob, None)

    def measured_on(self, cohort: list[int]) -> list[int] | None:
        """Return the clients on whose samples the accuracy is measured, as `accuracy` says."""
        return {"cohort": cohort, "clients": [EVERYONE]}.get(self.accuracy)

    @property
    def goes_by_passes(self) -> bool:
        """Whether the accuracy is that of the passes in which clients are."""
        return self.accuracy == "pass"

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """Pick from both policies; return the cohort of the one whose turn it is."""
        prob = self._prob(state, accuracy)
        keys = Keys(np.array([key.seed], np.uint64), key.round)
        (enforced,) = self._enforced([prob], keys)
        base_state, base = self.base.pick(state["base"], num_clients, key, accuracy)
        uniform_state, uniform = self.uniform.pick(
            state["uniform"], num_clients, key, accuracy
        )
        after = _state(base_state, uniform_state, prob, accuracy)
        return after, Cohort(uniform.ids if enforced else base.ids, enforced, prob)

    def pick_all(
        self,
        states: Sequence[Any],
        num_clients: int,
        keys: Keys,
        accuracies: Sequence[float | None],
    ) -> tuple[list[Any], Cohorts] | None:
        """Pick for several replicates, if both policies do so."""
        asked = (num_clients, keys, accuracies)
        of_base = self.base.pick_all([state["base"] for state in states], *asked)
        of_uniform = self.uniform.pick_all(
            [state["uniform"] for state in states], *asked
        )
        if is_users_class(type(self)) or of_base is None or of_uniform is None:
            return None
        base_states, base = of_base
        uniform_states, uniform = of_uniform
        probs = list(map(self._prob, states, accuracies))
        enforced = self._enforced(probs, keys)
        after = list(map(_state, base_states, uniform_states, probs, accuracies))
        return after, Cohorts.of(
            [
                Cohort(from_uniform if is_enforced else from_base, is_enforced, prob)
                for from_uniform, from_base, is_enforced, prob in zip(
                    uniform.lists(), base.lists(), enforced, probs, strict=True
                )
            ]
        )

    def _prob(self, state: Any, accuracy: float | None) -> float:
        """Return the probability for this round, as algorithm 2 updates it in line 5."""
        prob: float = state["enforce_prob"]
        before: float | None = state["accuracy"]
        if self.adapt is None or before is None or accuracy is None:
            return prob
        return min(1.0, max(0.0, prob + self.adapt * (before - accuracy)))

    def _enforced(self, probs: Sequence[float], keys: Keys) -> list[bool]:
        """Return whether this round is a snapshot in each replicate."""
        if self.every is not None:
            return [keys.round % self.every == 0] * len(probs)
        is_enforced_R = uniforms(1, keys, "snapshot")[:, 0] < probs
        enforced: list[bool] = is_enforced_R.tolist()
        return enforced


def _state(base: Any, uniform: Any, prob: float, accuracy: float | None) -> Any:
    """Return the state of a `Snapshot`."""
    return {
        "base": base,
        "uniform": uniform,
        "enforce_prob": prob,
        "accuracy": accuracy,
    }
