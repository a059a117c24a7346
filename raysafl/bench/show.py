"""The measurements of `raysafl bench` as a table beside the aims."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raysafl.bench.measure import median
from raysafl.bench.suite import bench
from raysafl.bench.workloads import STANDARD


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        name: what is measured.
        value: the number with its unit.
        made_of: the numbers from which it was computed.
        target: the aim; empty if there is none.
        reached: whether the aim is met; None if there is none.
    """

    name: str
    value: str
    made_of: str
    target: str
    reached: bool | None

    @property
    def mark(self) -> str:
        """Return whether the aim is met, as the table writes it."""
        return {True: "yes", False: "no", None: ""}[self.reached]


def bench_rows(found: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each measure that was taken, in the order of the aims."""
    for name in STANDARD:
        if found.get(name):
            yield _speedup_row(name, found[name], STANDARD[name].target)
    for index, (name, pair) in enumerate((found.get("actors") or {}).items()):
        yield _actors_row(name, pair, aimed=index == 0)
    limits = (
        ("replicates8_over_1", "8 replicates of W4 over one, two actors", "x", 3.0),
        ("s1_over_ideal", "S1: the sweep over two bare processes", "x", 1.25),
        ("empty_round_ms", "empty round on Ray", " ms", 4.0),
        ("trivial_trial_s", "trivial trial", " s", 0.15),
    )
    for key, name, unit, limit in limits:
        if found[key] is not None:
            value = found[key]
            aim = f"<= {limit:g}{unit}"
            yield Row(
                name, f"{value:.3g}{unit}", _made_of(key, found), aim, value <= limit
            )


def _actors_row(name: str, pair: dict[str, Any], aimed: bool) -> Row:
    """Make the row of a workload on two client actors; only the first one has an aim."""
    one = _seconds(pair["one_actor_seconds_per_round"])
    two = _seconds(pair["two_actors_seconds_per_round"])
    ceiling = pair["two_processes_ceiling"]
    share = pair["share_of_ceiling"]
    return Row(
        f"{name}: two client actors over one",
        f"{pair['two_actors_speedup']:.2f}x",
        f"{one} and {two} a round; two plain processes over one {ceiling:.2f}x, "
        f"{share:.2f} of it turn by turn",
        ">= 0.95 of the plain processes" if aimed else "",
        share >= 0.95 if aimed else None,
    )


def _speedup_row(name: str, found: dict[str, Any], target: float) -> Row:
    """Make the row of a workload in one process against the plain loop."""
    value = found["speedup_vs_plain"]
    made_of = (
        f"{_seconds(found['seconds_per_round'])} a round, "
        f"plain {_seconds(found['plain_seconds_per_round'])}; "
        f"{found['samples_per_s']:,.0f} samples/s; {found['peak_rss_mb']:.0f} MB, "
        f"plain {found['plain_peak_rss_mb']:.0f}; accuracy {found['accuracy']:.3f}, "
        f"plain {found['plain_accuracy']:.3f}"
    )
    if half := found.get("bfloat16"):
        made_of += f"; bfloat16 {half['speedup_vs_plain']:.2f}x, accuracy {half['accuracy']:.3f}"
    return Row(
        f"{name}: over the plain loop",
        f"{value:.2f}x",
        made_of,
        f">= {target:g}x",
        value >= target,
    )


def _made_of(key: str, found: dict[str, Any]) -> str:
    """Describe the numbers from which a measure was computed."""
    if key == "empty_round_ms":
        return ", ".join(f"{name}: {ms:.2f} ms" for name, ms in found["empty"].items())
    if key == "s1_over_ideal":
        s1 = found["s1"]
        return ", ".join(
            f"{name}: {min(s1['seconds'][name]):.0f} to {max(s1['seconds'][name]):.0f} s, "
            f"accuracy {s1['accuracy'][name]:.4f}"
            for name in s1["seconds"]
        )
    if key == "trivial_trial_s":
        when = {
            "quarter": "after a quarter",
            "trials": "after the last",
            "report": "at the end",
        }
        memory = found["trials"]["driver_rss_mb"]
        return "driver " + ", ".join(f"{memory[k]:.0f} MB {v}" for k, v in when.items())
    parts = []
    for setting, timed in found["replicates"].items():
        one, several = (
            _seconds(median(s)) for s in timed["seconds_per_round"].values()
        )
        name = setting.replace("_", " ")
        parts.append(f"{name} {one} and {several} a round ({timed['ratio']:.2f}x)")
    return ", ".join(parts)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def headline(found: dict[str, Any]) -> str:
    """Describe the machine, the time and the versions of a measurement in one line."""
    cores = found["cores"]
    versions = found["versions"]
    return (
        f"{found['machine']}, {cores['logical']} logical cores ({cores['physical']} physical, "
        f"{cores['usable'] or 'all'} usable); "
        f"{found['date']}; commit {found['commit'] or 'unknown'}; "
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}; "
        f"medians of {found['repeats']}"
    )


def print_bench(
    console: Console, as_json: bool, only: Sequence[str], repeats: int, full: bool
) -> None:
    """Measure, report progress on the error output, and print one JSON object or a table."""
    errors = Console(stderr=True, highlight=False)
    found = bench(
        only, repeats, full, say=lambda line: errors.print(line, markup=False)
    )
    if as_json:
        print(json.dumps(found, indent=1))
        return
    table = Table("measure", "value", "aim", "", "from")
    for row in bench_rows(found):
        mark = Text(row.mark, style="green" if row.reached else "red")
        table.add_row(row.name, row.value, row.target, mark, row.made_of)
    console.print(table)
    console.print(headline(found), soft_wrap=True)
