"""Everything with everything: each algorithm with each policy, and the wrappers around each.

A new algorithm joins by itself if all its fields have defaults. One that needs arguments,
and a new policy, get a line here; a test says if it is missing.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers.families import built_in

from raysafl import (
    AFL,
    FSL,
    SAFARI,
    Absent,
    Algorithm,
    Arbitrary,
    ArbitraryRates,
    Bernoulli,
    Beta,
    Centralised,
    Cyclic,
    FedAmplify,
    FedAvgM,
    FedDyn,
    FedProx,
    FSLParallel,
    Full,
    LocalTraining,
    Markov,
    Participation,
    Run,
    ServerOnly,
    Snapshot,
    Trace,
    Uniform,
)
from raysafl.core.record import Record
from raysafl.runtime import Worker
from raysafl.simulation.checkpoint import dump, restore
from raysafl.simulation.simulation import Simulation

SERVER = LocalTraining(lr=0.1, batch_size=32, epochs=1)
# Algorithms that need arguments, or are more interesting with others than the defaults.
CHOSEN: list[Algorithm] = [
    FedProx(prox=0.1),
    FedAvgM(momentum=0.5),
    FedDyn(alpha=0.1),
    FedAmplify(P=2, eta=1.2),
    AFL(max_delay=2),
    ServerOnly(server_update=SERVER),
    Centralised(local=SERVER),
]
WRAPPERS = {
    "SAFARI": lambda inner: SAFARI(inner=inner, client_prob=0.5, server_update=SERVER),
    "FSL": lambda inner: FSL(inner=inner, gamma=0.5),
    "FSL-p": lambda inner: FSLParallel(inner=inner, gamma=0.5),
}


def with_defaults(given: Sequence[Algorithm]) -> list[Algorithm]:
    """The built-in algorithms that can be made without arguments, but for those given."""
    left_out = {*(type(algorithm) for algorithm in given), SAFARI, FSL, FSLParallel}
    return [
        kind()
        for kind in sorted(built_in(Algorithm), key=lambda kind: kind.__name__)
        if kind not in left_out
        and not any(field.is_required() for field in kind.model_fields.values())
    ]


ALGORITHMS = [*CHOSEN, *with_defaults(CHOSEN)]
POLICIES: dict[str, Participation] = {
    "full": Full(),
    "uniform": Uniform(m=3),
    "absent": Absent(s=4, m=3),
    "arbitrary": Arbitrary(dist=Beta(), m=3),
    "rates": ArbitraryRates(dist=Beta()),
    "bernoulli": Bernoulli(rate=0.3),
    "markov": Markov(mean=0.3, correlation=0.5),
    "cyclic": Cyclic(groups=3),
}


def policies(folder: Path) -> dict[str, Participation]:
    """All policies, with a trace in a file and a snapshot around each."""
    file = folder / "trace.csv"
    file.write_text(
        "client,start,end\n" + "".join(f"{i},{i % 3},100\n" for i in range(10))
    )
    plain = POLICIES | {"trace": Trace(file=str(file))}
    around = {
        f"snapshot of {name}": Snapshot(base=policy, uniform=Uniform(m=2), **how)
        for (name, policy), how in zip(
            plain.items(),
            [{"every": 2}, {"q": 0.5}, {"adapt": 5.0}] * len(plain),
            strict=False,
        )
    }
    return plain | around


def play(sim: Simulation) -> list[Record]:
    records = []
    while not sim.done:
        records += sim.step()
    return records


def simulation(run: Run) -> Simulation:
    return Simulation(run, Worker(run.cells, run.data.load(), run.model))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_an_algorithm_runs_with_every_policy_and_is_finite(
    algorithm: Algorithm, tiny: Run, tmp_path: Path
) -> None:
    cohorts: dict[str, list[list[int]]] = {}
    for name, policy in policies(tmp_path).items():
        run = tiny.replace(algorithm=algorithm, participation=policy, replicates=1)
        sim = simulation(run)
        records = play(sim)
        assert len(records) == 4 and not sim.replicates[0].diverged, name
        assert torch.isfinite(sim.replicates[0].state.w_P).all(), name
        cohorts[name] = [r.cohort for r in records]
        assert all(len(set(c)) == len(c) > 0 for c in cohorts[name]), name
    reference = simulation(tiny.replace(participation=POLICIES["markov"], replicates=1))
    assert cohorts["markov"] == [r.cohort for r in play(reference)]  # time, not use


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("inner", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_a_wrapper_runs_around_every_algorithm_and_resumes_bitwise(
    wrapper: str, inner: Algorithm, tiny: Run
) -> None:
    policy = Snapshot(base=POLICIES["markov"], uniform=Uniform(m=2), adapt=5.0)
    run = tiny.replace(
        algorithm=WRAPPERS[wrapper](inner), participation=policy, replicates=1
    )
    whole, first, second = (simulation(run) for _ in range(3))
    expected = play(whole)
    records = [record for _ in range(2) for record in first.step()]
    restore(second, dump(first))
    records += play(second)
    assert [r.test_loss for r in records] == [r.test_loss for r in expected]
    assert [r.q for r in records] == [r.q for r in expected]


def test_every_built_in_algorithm_is_above_so_add_one_that_needs_arguments() -> None:
    wrappers = {SAFARI, FSL, FSLParallel}
    assert {*built_in(Algorithm)} == {type(a) for a in ALGORITHMS} | wrappers


def test_every_built_in_policy_is_above_so_add_a_new_one() -> None:
    used = {type(policy) for policy in POLICIES.values()}
    assert {*built_in(Participation)} == used | {Trace, Snapshot}
