"""What a user can combine, by family (every component that is defined now), and metrics."""

import inspect

from rich.table import Table
from rich.text import Text

from raysafl.core.algorithm import Algorithm
from raysafl.core.component import Component
from raysafl.core.participation import Participation
from raysafl.core.problem import Model
from raysafl.core.record import COLUMNS, Summary
from raysafl.data import Partition, ServerData, Source
from raysafl.participation import Distribution
from raysafl.storage.statistics import STATISTICS

FAMILIES: dict[str, type[Component]] = {
    "algorithm": Algorithm,
    "participation": Participation,
    "distribution": Distribution,
    "partition": Partition,
    "server data": ServerData,
    "dataset": Source,
    "model": Model,
}

ADVICE = {
    "xi2": "|grad f0 - grad F|^2, the server's data against the clients' (FSL, figure 9)",
    "G2": "mean_i |grad f_i - grad F|^2, how unlike the clients are (FSL, figure 9)",
    "sigma_G2": "max_i of the same (SAFARI, assumption 5)",
    "sigma2": "variance of a mini-batch gradient, of clients and of the server",
    "L": "largest curvature of a client's loss",
    "q_safari": "bound on the probability of a client round (SAFARI, theorem 4)",
    "q_fast": "bound on the probability of a snapshot (FAST, theorem 1)",
}


def catalogue() -> dict[str, dict[str, str]]:
    """Family to name to the first line of what it says of itself; and what is measured."""
    families = {
        family: {name: _first(kind) for name, kind in sorted(base.kinds().items())}
        for family, base in FAMILIES.items()
    }
    each = {
        name: f"each evaluated round: {column.meaning}"
        for name, column in COLUMNS.items()
        if column.summary is not Summary.KEY
    }
    families["dataset"]["share"] = (
        "Data sharing, an argument of Federation: D0 joins every client's data (Zhao et al. 2018)."
    )
    runs = {name: f"each run: {meaning}" for name, meaning in STATISTICS.items()}
    asked = {name: f"by raysafl advise: {meaning}" for name, meaning in ADVICE.items()}
    return families | {"metric": each | runs | asked}


def table() -> Table:
    """The catalogue for a terminal."""
    out = Table("family", "name", "what it does")
    for family, kinds in catalogue().items():
        for name, line in kinds.items():
            out.add_row(family, name, Text(line))
            family = ""
        out.add_section()
    return out


def _first(kind: type[Component]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
