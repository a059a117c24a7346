"""`raysafl list`: what a user can combine, by family, and what is measured."""

import inspect
import re
from typing import Any

from rich.table import Table
from rich.text import Text

from raysafl.algorithms import Compression, Selection
from raysafl.algorithms.bases import Around
from raysafl.core.algorithm import Algorithm
from raysafl.core.component import Component, public_names
from raysafl.core.objective import Objective
from raysafl.core.participation import Participation
from raysafl.core.problem import Model
from raysafl.core.rates import RateSchedule
from raysafl.core.record import COLUMNS, Summary
from raysafl.core.text import describe_fields
from raysafl.data import Partition, ServerData, Source
from raysafl.participation import Distribution, Factor
from raysafl.storage.statistics import STATISTICS

FAMILIES: dict[str, type[Component]] = {
    "algorithm": Algorithm,
    "participation": Participation,
    "distribution": Distribution,
    "factor": Factor,
    "partition": Partition,
    "server data": ServerData,
    "dataset": Source,
    "model": Model,
    "objective": Objective,
    "rate schedule": RateSchedule,
    "compression": Compression,
    "selection": Selection,
}

# What an algorithm that remembers clients keeps.
PER_CLIENT = "a vector per client"

# What runs have by the metrics of their objectives, and by what else they measure.
FURTHER = {
    "test_<metric>": "per evaluated round, a metric of the objective on the test set",
    "val_<metric>": "per evaluated round, the same on validation data",
    "final_<metric>": "per run, the metric in the last evaluated round",
    "last5_<metric>": "per run, its mean over the last five evaluated rounds",
    "best_<metric>": "per run, its best value of all rounds, the lowest for an error",
    "final_val_<metric>": "per run, its last value on validation data",
    "best_val_<metric>": "per run, its best value on validation data",
    "at_best_val": "per run, what it is judged by, on the test set, in the first round in "
    "which it was best on validation data",
}


def catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """Return all components and measures, by family and name, ready for JSON.

    A component has the first line of its docstring (`summary`), the paper that it is from
    (`source`, empty if there is none), and its `fields` with type, default and description.
    An algorithm also has `needs`: data of the server, vectors of clients. Components of the
    user's own that are defined by now are included.
    """
    families = {
        family: {
            name: _describe(component)
            for name, component in sorted(base.kinds().items())
        }
        for family, base in FAMILIES.items()
    }
    rounds = {
        name: {"summary": f"per evaluated round, {column.meaning}"}
        for name, column in COLUMNS.items()
        if column.summary is not Summary.KEY
    }
    runs = {
        name: {"summary": f"per run, {statistic.meaning}"}
        for name, statistic in STATISTICS.items()
    }
    further = {name: {"summary": text} for name, text in FURTHER.items()}
    return families | {"result": rounds | runs | further}


def _describe(component: type[Component]) -> dict[str, Any]:
    """Describe one component: its summary, its paper, its fields, and what it needs."""
    # A class of the user's own without a docstring has that of its base.
    text = inspect.getdoc(component) or ""
    source = re.search(r"^Source: (.*?)\s\(docs/papers", text, re.DOTALL | re.MULTILINE)
    needs = {}
    if issubclass(component, Algorithm):
        trains_server = component.uses_server_data not in (
            Algorithm.uses_server_data,
            Around.uses_server_data,
        )
        vectors = component.remembers_clients
        needs["needs"] = ["server data"] * trains_server + [PER_CLIENT] * vectors
    return {
        "summary": text.partition("\n")[0],
        "source": " ".join(source[1].split()) if source else "",
        "fields": describe_fields(component),
        **needs,
    }


def catalogue_table() -> Table:
    """Return the catalogue as a table for a terminal, with the names that Python has."""
    known = public_names()
    out = Table("family", "name", "what it does")
    for family, components in catalogue().items():
        for name, entry in components.items():
            text = Text(entry["summary"])
            if facts := [*filter(None, [entry.get("source")]), *entry.get("needs", ())]:
                text.append(f" [{'; '.join(facts)}]", style="dim")
            out.add_row(family, known.get(name, name), text)
            family = ""
        out.add_section()
    return out
