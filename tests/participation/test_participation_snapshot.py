"""Snapshots against algorithms 1 and 2 of FAST, and what no policy may depend on."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.played import played, simulation
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raysafl import Participation, Run, Snapshot, Uniform
from raysafl.algorithms import Key
from raysafl.participation import Arbitrary, Beta, Markov

BASE, UNIFORM = Arbitrary(dist=Beta(), m=3), Uniform(m=3)
CHAINS = Markov(mean=0.3, correlation=0.8)


def play(
    policy: Participation,
    accuracies: list[float | None],
    seed: int = 0,
    state: Any = None,
) -> tuple[list[list[int]], list[tuple[float | None, bool]]]:
    """Cohorts, and (probability, enforced) of each, when pick is given these accuracies."""
    state, ids_T, notes = state or policy.init(), [], []
    for t, accuracy in enumerate(accuracies):
        state, cohort = policy.pick(state, 10, Key(seed, t), accuracy)
        ids_T.append(cohort.ids)
        notes.append((cohort.enforce_prob, cohort.enforced))
    return ids_T, notes


NONE: list[float | None] = [None] * 60


@pytest.mark.parametrize("base", [BASE, CHAINS], ids=repr)
def test_limits_are_identities_bitwise(base: Participation) -> None:
    bare, uniform = play(base, NONE)[0], play(UNIFORM, NONE)[0]
    assert play(Snapshot(base=base, uniform=UNIFORM, snapshot_prob=0), NONE)[0] == bare
    assert (
        play(Snapshot(base=base, uniform=UNIFORM, snapshot_prob=1), NONE)[0] == uniform
    )
    assert play(Snapshot(base=base, uniform=UNIFORM, every=1), NONE)[0] == uniform
    never = Snapshot(base=base, uniform=UNIFORM, adapt=0.0)
    assert play(never, [t % 3 / 3 for t in range(60)])[0] == bare


@pytest.mark.parametrize("base", [BASE, CHAINS], ids=repr)
def test_every_ith_round_is_uniform_and_the_others_are_as_without(
    base: Participation,
) -> None:
    bare, uniform = play(base, NONE)[0], play(UNIFORM, NONE)[0]
    ids, notes = play(Snapshot(base=base, uniform=UNIFORM, every=4), NONE)
    assert ids == [uniform[t] if t % 4 == 0 else bare[t] for t in range(60)]
    assert notes == [(0.25, t % 4 == 0) for t in range(60)]


def test_with_q_each_round_is_a_snapshot_with_that_probability() -> None:
    base, uniform = play(BASE, [None] * 4000)[0], play(UNIFORM, [None] * 4000)[0]
    ids, notes = play(
        Snapshot(base=BASE, uniform=UNIFORM, snapshot_prob=0.3), [None] * 4000
    )
    assert {q for q, _ in notes} == {0.3}
    snapshots = [enforced for _, enforced in notes]
    assert stats.binomtest(sum(snapshots), 4000, 0.3).pvalue > 1e-3
    assert ids == [uniform[t] if snapshots[t] else base[t] for t in range(4000)]
    # Neighbours are independent: pairs as often as products.
    pairs = sum(a and b for a, b in zip(snapshots[::2], snapshots[1::2], strict=True))
    assert stats.binomtest(pairs, 2000, 0.09).pvalue > 1e-3


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.floats(0, 10),
    st.integers(0, 2**32),
)
def test_adaptive_q_is_algorithm_2_line_by_line(
    accuracies: list[float], lam: float, seed: int
) -> None:
    q, delta, expected = 0.0, 0.0, [0.0]
    for acc in accuracies:
        delta = delta - acc  # line 4
        q = min(1, max(0, q + lam * delta))  # line 5
        delta = acc  # line 6
        expected.append(q)
    _, notes = play(
        Snapshot(base=BASE, uniform=UNIFORM, adapt=lam), [None, *accuracies], seed=seed
    )
    assert [q for q, _ in notes] == pytest.approx(expected)


def simulate(run: Run) -> list[tuple[int, list[int], float | None, int]]:
    return [
        (r.replicate, r.cohorts[-1], r.enforce_prob, r.snapshots)
        for r in played(run)[1]
    ]


def test_a_run_records_q_and_its_snapshots(tiny: Run) -> None:
    policy = Snapshot(base=BASE, uniform=UNIFORM, every=2)
    seen = simulate(tiny.replace(participation=policy, rounds=4, replicates=1))
    assert [(q, snapshots) for _, _, q, snapshots in seen] == [(0.5, 1), (0.5, 0)] * 2
    adaptive = tiny.replace(
        participation=Snapshot(base=BASE, uniform=UNIFORM, adapt=1.0)
    )
    assert all(q is not None and 0 <= q <= 1 for _, _, q, _ in simulate(adaptive))


@pytest.mark.parametrize("accuracy", ["cohort", "clients"])
def test_q_can_go_by_what_the_new_model_gets_right(accuracy: str, tiny: Run) -> None:
    policy = Snapshot(base=BASE, uniform=UNIFORM, adapt=2.0, accuracy=accuracy)
    sim, told, notes = simulation(tiny.replace(participation=policy)), [], []
    samples = tiny.data.load().train
    work: Any = sim.work
    for record in (r for _ in range(4) for r in sim.step() if r.replicate == 0):
        split, (w_P, *_) = (
            work.population.splits[0],
            [rep.state.w_P for rep in sim.replicates],
        )
        ids = record.cohorts[-1] if accuracy == "cohort" else range(10)
        held = np.concatenate([split.clients[i] for i in ids])
        x = torch.from_numpy(samples.x[held]) * samples.scale + samples.shift
        right = work.trainer.model.logits(w_P, x).argmax(-1).numpy() == samples.y[held]
        assert record.train_accuracy == pytest.approx(right.mean(), abs=2 / len(held))
        told.append(record.train_accuracy)
        notes.append(record.enforce_prob)
    expected = play(policy, [None, *told[:-1]])[1]
    assert notes == [q for q, _ in expected]
