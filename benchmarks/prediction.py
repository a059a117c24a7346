"""What a sweep of 100,000 runs on 16 nodes would take, from scaling.json and cpu.json.

The page docs/scale.md explains the arithmetic and holds these tables.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.processes import median
from benchmarks.tables import in_digits
from raysafl.runtime.client_actor import LARGE
from raysafl.sweep.choices import FLUSH_SECONDS
from raysafl.sweep.packs import MOST_RUNS, PACKS_PER_TRIAL
from raysafl.sweep.watch import REPORT_SECONDS

RUNS = 100_000
NODES = 16
CORES = 32  # of a node
NODE_BYTES = 128e9
TRIALS = NODES * CORES  # at once, each with one client actor of one core
STORE_SHARE = 0.3  # of a node's memory, for Ray's object store, as Ray has it
NETWORK_BYTES = 1.25e9  # a second to the driver's node, assumed: 10 Gbit/s
MNIST_BYTES = 70_000 * (784 + 8)
ROUNDS = "the rounds of all packs"
MEASURED = {
    "scaling.json": ("trials", "packs", "at-once", "reports"),
    "cpu.json": ("s1", "report_s"),
}


@dataclass(frozen=True)
class Shape:
    """The runs of a sweep: rounds, of which some are evaluated, replicates, clients a round."""

    told: str
    rounds: int
    evaluated: int
    replicates: int
    clients: int


SMALL = Shape("1,000 rounds, 10 evaluated, 10 clients of 60 samples", 1000, 10, 1, 10)
TABLE8 = Shape(
    "as S1: 150 rounds, all evaluated, 5 clients of 6,000, 5 replicates", 150, 150, 5, 5
)


@dataclass(frozen=True)
class Measured:
    """The measured numbers that enter. Seconds and bytes."""

    run_s: Mapping[Shape, float]  # of one core, for one run
    beside: float  # a round beside a second pack over a round alone
    parameters: int
    header: float  # bytes of a message, a run
    coordinator: Callable[[float], float]  # bytes, of cells
    actor: Callable[[float], float]
    report_s: float  # driver's processor time of a report to it
    driver_s: float  # driver's processor time of a trivial run, everything
    track_s: float  # MLflow's time of a run
    track_bytes: float
    run_bytes: float  # in the folder, with one row
    row_bytes: float  # in memory
    page_s: float  # `raysafl report`, a run

    @classmethod
    def of(cls, scaling: Mapping[str, Any], cpu: Mapping[str, Any]) -> "Measured":
        packs = scaling["packs"]
        trials = scaling["trials"]
        at_once = _middle(scaling["at-once"], "seconds")
        large = packs["points"].index(64) if 64 in packs["points"] else -1
        each = _middle(packs, "seconds")[large] / packs["points"][large]
        bare = median(cpu["s1"]["seconds"]["bare"])
        return cls(
            # Two processes shared the 24 runs of S1.
            run_s={SMALL: each * SMALL.rounds, TABLE8: bare * 2 / 24},
            beside=at_once[1] / at_once[0],
            parameters=round(_middle(packs, "parameters")[0]),
            header=_middle(packs, "header")[large],
            coordinator=_curve(packs, "memory"),
            actor=_curve(packs, "actor"),
            report_s=_slope(scaling["reports"], "processor"),
            driver_s=_slope(trials, "processor"),
            track_s=_slope(trials, "sync"),
            track_bytes=_slope(trials, "database"),
            run_bytes=_slope(trials, "bytes"),
            row_bytes=_middle(trials, "row")[-1],
            page_s=cpu["report_s"] / cpu["trials"]["runs"],
        )


def _middle(axis: Mapping[str, Any], name: str) -> list[float]:
    return [median([p[name] for p in point]) for point in axis["taken"]]


def _slope(axis: Mapping[str, Any], name: str) -> float:
    """Return the slope of the last two points; never a negative one, as noise may have it."""
    before, last = _middle(axis, name)[-2:]
    x, y = axis["points"][-2:]
    return float(max(0.0, (last - before) / (y - x)))


def _curve(axis: Mapping[str, Any], name: str) -> Callable[[float], float]:
    """Return the bytes between the points, which are in MiB."""
    bytes_ = [2**20 * mib for mib in _middle(axis, name)]
    return lambda cells: float(np.interp(cells, axis["points"], bytes_))


def size(value: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"


def time(value: float) -> str:
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if value >= 2 * unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} s" if value >= 1 or not value else f"{1e3 * value:.3g} ms"


# Each quantity: how it is computed, in words, and how it is written.
QUANTITIES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "runs of a pack": (
        f"{RUNS:,} / ({TRIALS} x {PACKS_PER_TRIAL}), at most {MOST_RUNS}",
        in_digits,
    ),
    "packs": ("runs / runs of a pack", in_digits),
    "cells of a pack": ("runs of a pack x replicates", in_digits),
    "time of a run": ("measured, on one core", time),
    "time of a pack": ("runs x time of a run x beside", time),
    ROUNDS: (f"packs x time of a pack / {TRIALS}", time),
    "messages": ("packs x rounds x 2 x (1 + share of evaluated rounds)", in_digits),
    "bytes of a round of a pack": (
        "cells x ((2 + share of evaluated rounds) x 4P + 40 x clients + header)",
        size,
    ),
    "bytes a second and node": (
        f"{CORES} x bytes of a round x rounds / time of a pack",
        size,
    ),
    "object store of a node": (
        f"MNIST + {CORES} x 2 x cells x 4P, if that is too large for messages",
        size,
    ),
    "memory of a node": (f"{CORES} x (coordinator + actor) at these cells", size),
    "bytes of checkpoints a second, to the driver": (
        f"{TRIALS} x cells x 4P / {FLUSH_SECONDS:g} s, if a pack lasts so long",
        size,
    ),
    "bytes of the folder": ("runs x bytes of a run with one row", size),
    "reports to the driver": (
        f"packs x time of a pack / {REPORT_SECONDS:g} s, at least one a pack",
        in_digits,
    ),
    "processor time of the driver": (
        "reports x time of a report + runs x driver's time of a trivial run",
        time,
    ),
    "memory of the report": (
        "runs x replicates x evaluated rounds x bytes of a row x 2",
        size,
    ),
    "time of the report": ("runs x time of a run's report (which had one row)", time),
    "time of MLflow (summaries)": ("runs x time of a run", time),
    "MLflow's database": ("runs x bytes of a run", size),
}


def predict(s: Shape, m: Measured) -> dict[str, float]:
    """Return every quantity by its name, as `QUANTITIES` says it in words."""
    runs = min(MOST_RUNS, math.ceil(RUNS / (TRIALS * PACKS_PER_TRIAL)))
    packs = math.ceil(RUNS / runs)
    cells = runs * s.replicates
    pack_s = runs * m.run_s[s] * m.beside
    evaluated = s.evaluated / s.rounds
    moved = cells * ((2 + evaluated) * 4 * m.parameters + 40 * s.clients + m.header)
    vectors = cells * 4 * m.parameters
    in_messages = vectors <= LARGE
    saved = 0.0 if pack_s < FLUSH_SECONDS else TRIALS * vectors / FLUSH_SECONDS
    reports = packs * max(1, pack_s / REPORT_SECONDS)
    return {
        "runs of a pack": runs,
        "packs": packs,
        "cells of a pack": cells,
        "time of a run": m.run_s[s],
        "time of a pack": pack_s,
        ROUNDS: packs * pack_s / TRIALS,
        "messages": packs * s.rounds * 2 * (1 + evaluated),
        "bytes of a round of a pack": moved,
        "bytes a second and node": CORES * moved * s.rounds / pack_s,
        "object store of a node": MNIST_BYTES
        + (0 if in_messages else CORES * 2 * vectors),
        "memory of a node": CORES * (m.coordinator(cells) + m.actor(cells)),
        "bytes of checkpoints a second, to the driver": saved,
        "bytes of the folder": RUNS * m.run_bytes,
        "reports to the driver": reports,
        "processor time of the driver": reports * m.report_s + RUNS * m.driver_s,
        "memory of the report": RUNS * s.replicates * s.evaluated * m.row_bytes * 2,
        "time of the report": RUNS * m.page_s,
        "time of MLflow (summaries)": RUNS * m.track_s,
        "MLflow's database": RUNS * m.track_bytes,
    }


# For each quantity that may break: its limit, in words and from what was predicted, and
# what to do then.
Limit = tuple[str, Callable[[Mapping[str, float]], float], str]
LIMITS: Mapping[str, Limit] = {
    "processor time of the driver": (
        "the rounds, as Tune's loop has one core",
        lambda p: p[ROUNDS],
        "`--track none`; larger packs (`--pack`), so that fewer trials report; several "
        "drivers, each with a part of the sweep in a folder of its own (`--only`)",
    ),
    "time of MLflow (summaries)": (
        "the rounds, as one thread logs beside them",
        lambda p: p[ROUNDS],
        "`--track none`, and `raysafl sync` later; a server with PostgreSQL",
    ),
    "time of the report": (
        "the rounds",
        lambda p: p[ROUNDS],
        "parts of the sweep in folders of their own",
    ),
    "memory of the report": (
        f"{NODE_BYTES / 1e9:g} GB, a node's memory",
        lambda p: NODE_BYTES,
        "evaluate less often (`eval_every`); parts of the sweep in folders of their own",
    ),
    "bytes of checkpoints a second, to the driver": (
        "10 Gbit/s, assumed of the driver's network",
        lambda p: NETWORK_BYTES,
        "`Runner(flush_seconds=300)`: a crash then loses up to five minutes",
    ),
    "memory of a node": (
        f"{NODE_BYTES / 1e9:g} GB",
        lambda p: NODE_BYTES,
        "`--actors 2` or more, so that fewer coordinators serve the same cores",
    ),
    "object store of a node": (
        f"{STORE_SHARE:.0%} of a node's memory",
        lambda p: STORE_SHARE * NODE_BYTES,
        "smaller packs; `ray start --object-store-memory`",
    ),
}


def missing(scaling: Mapping[str, Any], cpu: Mapping[str, Any]) -> list[str]:
    """What was not measured, or by a version that measured less."""
    files = {"scaling.json": scaling, "cpu.json": cpu}
    names = [
        f"`{name}` of {file}"
        for file, needed in MEASURED.items()
        for name in needed
        if files[file].get(name) is None
    ]
    old = "trials" in scaling and "sync" not in scaling["trials"]["taken"][-1][0]
    return [*names, *(["`trials` of scaling.json by this version"] if old else [])]


def tables(
    scaling: Mapping[str, Any], cpu: Mapping[str, Any]
) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """The bodies of three tables: what was measured, what is predicted, and the limits."""
    measured = Measured.of(scaling, cpu)
    found = [predict(shape, measured) for shape in (SMALL, TABLE8)]
    predicted = [
        [name, formula, *(write(one[name]) for one in found)]
        for name, (formula, write) in QUANTITIES.items()
    ]
    shares = {
        name: [one[name] / limit(one) for one in found]
        for name, (_, limit, _) in LIMITS.items()
    }
    first = sorted(LIMITS, key=lambda name: -max(shares[name]))
    limits = [
        [name, LIMITS[name][0], *map(_share, shares[name]), LIMITS[name][2]]
        for name in first
    ]
    return _measured_rows(measured), predicted, limits


def _share(value: float) -> str:
    text = f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"
    return f"**{text}**" if value > 1 else text


def _measured_rows(m: Measured) -> list[list[str]]:
    of_packs, of_trials = "scaling.json, packs", "scaling.json, trials"
    rows: Sequence[tuple[str, str, str]] = (
        ("a small run: 1,000 rounds in a pack of 64", time(m.run_s[SMALL]), of_packs),
        ("a run of S1", time(m.run_s[TABLE8]), "cpu.json, S1 in bare processes"),
        (
            "beside: a round beside a second pack over a round alone",
            f"{m.beside:.2f}",
            "scaling.json, at-once",
        ),
        ("parameters P", in_digits(m.parameters), of_packs),
        ("header: bytes of a message, a run", size(m.header), of_packs),
        ("driver's time of a report", time(m.report_s), "scaling.json, reports"),
        ("driver's time of a further trivial run", time(m.driver_s), of_trials),
        ("MLflow's time of a run", time(m.track_s), of_trials),
        ("MLflow's bytes of a run", size(m.track_bytes), of_trials),
        ("bytes of a run with one row in the folder", size(m.run_bytes), of_trials),
        ("bytes of a row in memory", size(m.row_bytes), of_trials),
        ("`raysafl report`, a run", time(m.page_s), "cpu.json, trials"),
    )
    return [list(row) for row in rows]
