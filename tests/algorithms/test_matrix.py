"""Everything with everything: each algorithm with each policy, and the wrappers around each.

`tests/helpers/matrix.py` lists them; a test here says if one is missing.
"""

from pathlib import Path

import pytest
import torch
from helpers.checkpoints import dump, restore
from helpers.families import built_in
from helpers.matrix import ALGORITHMS, POLICIES, WRAPPERS, policies
from helpers.played import finish, simulation

from raysafl import FSL, SAFARI, Algorithm, Participation, Run, Snapshot, Uniform
from raysafl.algorithms import FOCUS, Compressed, FSLParallel, Selected
from raysafl.participation import Trace


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_an_algorithm_runs_with_every_policy_and_is_finite(
    algorithm: Algorithm, tiny: Run, tmp_path: Path
) -> None:
    cohorts: dict[str, list[list[int]]] = {}
    for name, policy in policies(tmp_path).items():
        run = tiny.replace(algorithm=algorithm, participation=policy, replicates=1)
        sim = simulation(run)
        records = finish(sim)
        assert len(records) == 4 and not sim.replicates[0].diverged, name
        assert torch.isfinite(sim.replicates[0].state.w_P).all(), name
        cohorts[name] = [r.cohorts[-1] for r in records]
        assert all(len(set(c)) == len(c) > 0 for c in cohorts[name]), name
    reference = simulation(tiny.replace(participation=POLICIES["markov"], replicates=1))
    assert cohorts["markov"] == [
        r.cohorts[-1] for r in finish(reference)
    ]  # time, not use


@pytest.mark.parametrize(
    ("wrapper", "inner"),
    [
        pytest.param(wrapper, inner, id=f"{wrapper}-{type(inner).__name__}")
        for wrapper in ["alone", *WRAPPERS]
        for inner in ALGORITHMS
        if not (wrapper == "compressed" and isinstance(inner, FOCUS))  # is refused
    ],
)
def test_every_algorithm_alone_and_in_a_wrapper_resumes_bitwise(
    wrapper: str, inner: Algorithm, tiny: Run
) -> None:
    policy: Participation = Snapshot(
        base=POLICIES["markov"], uniform=Uniform(m=2), adapt=5.0
    )
    algorithm = inner if wrapper == "alone" else WRAPPERS[wrapper](inner)
    run = tiny.replace(algorithm=algorithm, participation=policy, replicates=1)
    whole, first, second = (simulation(run) for _ in range(3))
    expected = finish(whole)
    records = [record for _ in range(2) for record in first.step()]
    restore(second, dump(first))
    records += finish(second)
    assert [r.test_loss for r in records] == [r.test_loss for r in expected]
    assert [r.enforce_prob for r in records] == [r.enforce_prob for r in expected]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_an_algorithm_that_keeps_vectors_of_clients_says_so(
    algorithm: Algorithm, tiny: Run
) -> None:
    sim = simulation(tiny.replace(algorithm=algorithm, replicates=1))
    finish(sim)
    assert algorithm.remembers_clients or not sim.replicates[0].state.clients


def test_every_built_in_algorithm_is_in_the_matrix_so_add_a_new_one() -> None:
    wrappers = {SAFARI, FSL, FSLParallel, Compressed, Selected}
    assert {*built_in(Algorithm)} == {type(a) for a in ALGORITHMS} | wrappers


def test_every_built_in_policy_is_in_the_matrix_so_add_a_new_one() -> None:
    used = {type(policy) for policy in POLICIES.values()}
    assert {*built_in(Participation)} == used | {Trace, Snapshot}
