"""Everything that can be combined: each algorithm, each policy, and the wrappers around each.

A new algorithm joins by itself if all its fields have defaults. One that needs arguments,
and a new policy, get a line here; `tests/algorithms/test_matrix.py` says if it is missing.
"""

from collections.abc import Sequence
from pathlib import Path

import raysafl as fl
from helpers.families import built_in
from raysafl.algorithms import (
    AFL,
    F3AST,
    AmplifiedSCAFFOLD,
    Centralised,
    Compressed,
    FedAmplify,
    FedAvgM,
    FedDyn,
    FedProx,
    FSLParallel,
    PowerOfChoice,
    ScheduledServer,
    Selected,
    ServerOnly,
    TopK,
)
from raysafl.participation import (
    Arbitrary,
    ArbitraryRates,
    Bernoulli,
    Beta,
    Cyclic,
    Full,
    Markov,
    MinimumSeparation,
    Sine,
    Trace,
    Varying,
)
from raysafl.training import StepRate

SERVER = fl.LocalTraining(lr=0.1, batch_size=32, epochs=1)
# Algorithms that need arguments, or are more interesting with others than the defaults.
CHOSEN: list[fl.Algorithm] = [
    FedProx(prox=0.1),
    FedAvgM(momentum=0.5),
    FedDyn(alpha=0.1),
    FedAmplify(P=2, eta=1.2),
    AmplifiedSCAFFOLD(P=2, gamma=1.2),
    AFL(max_delay=2),
    F3AST(m=2, beta=0.1),
    ScheduledServer(inner=FedAvgM(), schedule=StepRate(milestones=[2])),
    ServerOnly(server_update=SERVER),
    Centralised(local=SERVER),
]
WRAPPERS = {
    "SAFARI": lambda inner: fl.SAFARI(
        inner=inner, client_prob=0.5, server_update=SERVER
    ),
    "FSL": lambda inner: fl.FSL(inner=inner, gamma=0.5),
    "FSL-p": lambda inner: FSLParallel(inner=inner, gamma=0.5),
    "compressed": lambda inner: Compressed(inner=inner, compression=TopK(fraction=0.1)),
    "selected": lambda inner: Selected(inner=inner, by=PowerOfChoice(m=1, d=2)),
}


def with_defaults(given: Sequence[fl.Algorithm]) -> list[fl.Algorithm]:
    """The built-in algorithms that can be made without arguments, but for those given."""
    wrappers = {fl.SAFARI, fl.FSL, FSLParallel, Compressed, Selected}
    left_out = {*(type(algorithm) for algorithm in given), *wrappers}
    return [
        kind()
        for kind in sorted(built_in(fl.Algorithm), key=lambda kind: kind.__name__)
        if kind not in left_out
        and not any(field.is_required() for field in kind.model_fields.values())
    ]


ALGORITHMS = [*CHOSEN, *with_defaults(CHOSEN)]
# Each algorithm, and each wrapper around the simplest.
EVERY = [*ALGORITHMS, *(wrap(fl.FedAvg()) for wrap in WRAPPERS.values())]
POLICIES: dict[str, fl.Participation] = {
    "full": Full(),
    "uniform": fl.Uniform(m=3),
    "absent": fl.Absent(s=4, m=3),
    "arbitrary": Arbitrary(dist=Beta(), m=3),
    "rates": ArbitraryRates(dist=Beta()),
    "bernoulli": Bernoulli(rate=0.3),
    "markov": Markov(mean=0.3, correlation=0.5),
    "varying": Varying(
        base=0.4, factor=Sine(amplitude=0.5, mean=0.8, period=5), correlation=0.5
    ),
    "cyclic": Cyclic(groups=3),
    "separation": MinimumSeparation(base=Full(), rounds=2, m=3),
}


def policies(folder: Path) -> dict[str, fl.Participation]:
    """All policies, with a trace in a file and a snapshot around each."""
    file = folder / "trace.csv"
    file.write_text(
        "client,start,end\n" + "".join(f"{i},{i % 3},100\n" for i in range(10))
    )
    plain = POLICIES | {"trace": Trace(file=str(file))}
    around = {
        f"snapshot of {name}": fl.Snapshot(base=policy, uniform=fl.Uniform(m=2), **how)
        for (name, policy), how in zip(
            plain.items(),
            [{"every": 2}, {"snapshot_prob": 0.5}, {"adapt": 5.0}] * len(plain),
            strict=False,
        )
    }
    return plain | around
