"""The measurements of `raysafl bench` as a table beside the aims."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raysafl.bench.device_bench import bench_device
from raysafl.bench.device_show import device_headline, device_rows
from raysafl.bench.measure import median
from raysafl.bench.suite import PACK_RUNS, bench
from raysafl.bench.wording import headline, in_digits, in_seconds
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


class Aim(NamedTuple):
    """A number at the top of the result, and what is aimed at.

    Attributes:
        key: its name there.
        name: what is measured.
        unit: what is written behind the number.
        limit: the most that the number may be, or the least.
        least: whether it is the least.
    """

    key: str
    name: str
    unit: str
    limit: float
    least: bool = False

    def row(self, found: dict[str, Any]) -> Row:
        """Make the row of this number."""
        value = found[self.key]
        return Row(
            self.name.format(runs=f"{_runs(found):,}"),
            f"{in_digits(value)}{self.unit}",
            MADE_OF[self.key](found),
            f"{'>=' if self.least else '<='} {self.limit:g}{self.unit}",
            value >= self.limit if self.least else value <= self.limit,
        )


AIMS = (
    Aim("replicates8_over_1", "8 replicates of W4 over one, two actors", "x", 2.5),
    Aim("s1_over_ideal", "S1: the sweep over two bare processes", "x", 1.1),
    Aim("s1_busy", "S1: share of time in which client actors compute", "", 0.97, True),
    Aim("empty_round_ms", "empty round on Ray", " ms", 4.0),
    Aim("pack_round_ms", "empty round of a pack of 64 runs, one actor", " ms", 4.0),
    Aim("start_s", "one trivial run, from command to prompt", " s", 8.0),
    Aim("further_run_s", "each further run of {runs} trivial ones", " s", 0.01),
    Aim("sweep_files", "files of {runs} runs", "", 300),
    Aim("driver_growth_mb", "driver's memory, last quarters of {runs} runs", " MB", 30),
    Aim("report_s", "report of {runs} runs", " s", 60),
)
PLAIN_GAIN = ">= 0.95 of the plain processes"


def bench_rows(found: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each measure that was taken, in the order of the aims.

    Args:
        found: a result of `bench`. It may lack measures that did not exist when it was
            taken.
    """
    for name in STANDARD:
        if found.get(name):
            yield _speedup_row(name, found[name], STANDARD[name].target)
    for index, (name, pair) in enumerate((found.get("actors") or {}).items()):
        yield _actors_row(name, pair, aimed=index == 0)
    for name, pair in (found.get("pack_actors") or {}).items():
        yield _actors_row(f"{name}, a pack of {PACK_RUNS} runs", pair, aimed=True)
    for aim in AIMS:
        if found.get(aim.key) is not None:
            yield aim.row(found)


def _runs(found: dict[str, Any]) -> int:
    """Return how many runs the sweep of trivial runs had."""
    runs: int = (found.get("trials") or {}).get("runs", 0)
    return runs


def _actors_row(name: str, pair: dict[str, Any], aimed: bool) -> Row:
    """Make the row of a workload on two client actors, with an aim or without one."""
    one = in_seconds(pair["one_actor_seconds_per_round"])
    two = in_seconds(pair["two_actors_seconds_per_round"])
    ceiling = pair["two_processes_ceiling"]
    share = pair["share_of_ceiling"]
    return Row(
        f"{name}: two client actors over one",
        f"{pair['two_actors_speedup']:.2f}x",
        f"{one} and {two} a round; two plain processes over one {ceiling:.2f}x, "
        f"{share:.2f} of it turn by turn",
        PLAIN_GAIN if aimed else "",
        share >= 0.95 if aimed else None,
    )


def _speedup_row(name: str, found: dict[str, Any], target: float) -> Row:
    """Make the row of a workload in one process against the plain loop."""
    value = found["speedup_vs_plain"]
    made_of = (
        f"{in_seconds(found['seconds_per_round'])} a round, "
        f"plain {in_seconds(found['plain_seconds_per_round'])}; "
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


def _of_empty(found: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {ms:.2f} ms" for name, ms in found["empty"].items())


def _of_empty_pack(found: dict[str, Any]) -> str:
    return _span(found["empty_pack"]["ms"], "ms")


def _of_s1(found: dict[str, Any]) -> str:
    s1 = found["s1"]
    return ", ".join(
        f"{name}: {_span(s1['seconds'][name], 's', 0)}, "
        f"accuracy {s1['accuracy'][name]:.4f}"
        for name in s1["seconds"]
    )


def _of_busy(found: dict[str, Any]) -> str:
    s1 = found["s1"]
    return (
        f"{_span(s1['busy'], '', 3).strip()}, "
        f"{_span(s1['rounds_seconds'], 's', 0)} from the first to the last round"
    )


def _of_start(found: dict[str, Any]) -> str:
    return _span(found["start"]["seconds"], "s")


def _of_further(found: dict[str, Any]) -> str:
    trials = found["trials"]
    return (
        f"one run: {_span(trials['seconds_of_one'], 's')}, "
        f"{trials['runs']:,}: {_span(trials['seconds'], 's', 0)}"
    )


def _of_growth(found: dict[str, Any]) -> str:
    when = {
        "quarter": "after a quarter",
        "trials": "after the last",
        "report": "at the end",
    }
    memory = found["trials"]["driver_rss_mb"]
    return "driver " + ", ".join(f"{memory[k]:.0f} MB {v}" for k, v in when.items())


def _of_report(found: dict[str, Any]) -> str:
    return _span(found["trials"]["report_seconds"], "s")


def _of_replicates(found: dict[str, Any]) -> str:
    parts = []
    for setting, timed in found["replicates"].items():
        one, several = (
            in_seconds(median(s)) for s in timed["seconds_per_round"].values()
        )
        name = setting.replace("_", " ")
        parts.append(f"{name} {one} and {several} a round ({timed['ratio']:.2f}x)")
    return ", ".join(parts)


MADE_OF: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "replicates8_over_1": _of_replicates,
    "s1_over_ideal": _of_s1,
    "s1_busy": _of_busy,
    "empty_round_ms": _of_empty,
    "pack_round_ms": _of_empty_pack,
    "start_s": _of_start,
    "further_run_s": _of_further,
    "sweep_files": lambda found: "MLflow's database included",
    "driver_growth_mb": _of_growth,
    "report_s": _of_report,
}


def _span(values: Sequence[float], unit: str, digits: int = 2) -> str:
    """Write the least and the most of some numbers."""
    low, high = (f"{end:.{digits}f}" for end in (min(values), max(values)))
    return f"{low} to {high} {unit}"


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


def print_device(
    console: Console,
    as_json: bool,
    device: str,
    only: Sequence[str],
    repeats: int,
    dry: bool,
    out: Path,
) -> None:
    """Measure a device as `bench_device` does, and print one JSON object or a table."""
    errors = Console(stderr=True, highlight=False)
    found = bench_device(
        device,
        only,
        repeats,
        dry,
        out,
        say=lambda line: errors.print(line, markup=False, soft_wrap=True),
    )
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        table = Table("measure", "value", "floor", "from")
        for row in device_rows(found):
            table.add_row(*row)
        console.print(table)
        console.print(device_headline(found), soft_wrap=True)
    errors.print(f"Written: {out}", markup=False, soft_wrap=True)
