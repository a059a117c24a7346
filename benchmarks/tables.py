"""What each command has found, as Markdown."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.cpu import PACK_RUNS
from benchmarks.found import Found
from benchmarks.processes import median
from benchmarks.workloads import STANDARD

Measures = Mapping[str, Any]
Row = Sequence[str]


def in_digits(value: float) -> str:
    """Write a number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def in_seconds(value: float) -> str:
    """Write a time in seconds, or in milliseconds if it is below one second."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def headline(origin: Measures) -> str:
    """Describe the machine, the time and the versions of a measurement in one line."""
    told = [origin["machine"]]
    if cores := origin.get("cores"):
        told[0] += (
            f", {cores['logical']} logical cores ({cores['physical']} physical, "
            f"{cores['usable'] or 'all'} usable)"
        )
    versions = origin["versions"].items()
    told += [origin["date"], f"commit {origin['commit'] or 'unknown'}"]
    told.append(", ".join(f"{name} {version}" for name, version in versions))
    if "repeats" in origin:
        told.append(f"medians of {origin['repeats']}")
    if "load" in origin:
        told.append(f"load {origin['load']} at the start")
    return "; ".join(told)


def table(head: Row, body: Sequence[Row]) -> str:
    """Write a table; what would end a cell is written otherwise."""
    rows = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in body]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


# The CPU.

# The numbers at the top of the result: their keys, what is measured, the unit, and the most
# that they should be (or the least, where the sign is >=).
AIMS = (
    ("replicates8_over_1", "8 replicates of W4 over one, two actors", "x", "<=", 2.5),
    ("s1_over_ideal", "S1: the sweep over two bare processes", "x", "<=", 1.1),
    ("s1_busy", "S1: share of time in which client actors compute", "", ">=", 0.97),
    ("empty_round_ms", "empty round on Ray", " ms", "<=", 4),
    ("pack_round_ms", "empty round of a pack of 64 runs, one actor", " ms", "<=", 4),
    ("start_s", "one trivial run, from command to prompt", " s", "<=", 8),
    ("further_run_s", "each further run of {} trivial ones", " s", "<=", 0.01),
    ("sweep_files", "files of {} runs", "", "<=", 300),
    ("driver_growth_mb", "driver's memory, last quarters of {} runs", " MB", "<=", 30),
    ("report_s", "report of {} runs", " s", "<=", 60),
)


def cpu(found: Found) -> str:
    """Write what `cpu` has found, beside the aims."""
    head = ("measure", "value", "aim", "reached", "from")
    return f"{headline(found.origin)}.\n\n{table(head, list(cpu_rows(found.measures)))}"


def cpu_rows(found: Measures) -> Iterator[Row]:
    """Yield a row for each measure that was taken; measures of other versions may lack."""
    for name in STANDARD:
        if name in found:
            yield _speedup_row(name, found[name], STANDARD[name].target)
    for index, (name, pair) in enumerate(found.get("actors", {}).items()):
        yield _actors_row(name, pair, aimed=index == 0)
    for name, pair in found.get("pack_actors", {}).items():
        yield _actors_row(f"{name}, a pack of {PACK_RUNS} runs", pair, aimed=True)
    runs = f"{found.get('trials', {}).get('runs', 0):,}"
    for key, name, unit, sign, limit in AIMS:
        value = found.get(key)
        if value is not None:
            reached = value >= limit if sign == ">=" else value <= limit
            told = f"{in_digits(value)}{unit}"
            aim = f"{sign} {limit:g}{unit}"
            yield name.format(runs), told, aim, _mark(reached), _made_of(key, found)


def _mark(reached: bool) -> str:
    return "yes" if reached else "**no**"


def _actors_row(name: str, pair: Measures, aimed: bool) -> Row:
    """Make the row of two client actors against one."""
    one = in_seconds(pair["one_actor_seconds_per_round"])
    two = in_seconds(pair["two_actors_seconds_per_round"])
    share = pair["share_of_ceiling"]
    return (
        f"{name}: two client actors over one",
        f"{pair['two_actors_speedup']:.2f}x",
        ">= 0.95 of the plain processes" if aimed else "",
        _mark(share >= 0.95) if aimed else "",
        f"{one} and {two} a round; two plain processes over one "
        f"{pair['two_processes_ceiling']:.2f}x, {share:.2f} of it turn by turn",
    )


def _speedup_row(name: str, found: Measures, target: float) -> Row:
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
    aim = f">= {target:g}x"
    return (
        f"{name}: over the plain loop",
        f"{value:.2f}x",
        aim,
        _mark(value >= target),
        made_of,
    )


def _made_of(key: str, found: Measures) -> str:
    """Write the numbers from which the one at the top was computed."""
    trials = found.get("trials", {})
    s1 = found.get("s1", {})
    match key:
        case "replicates8_over_1":
            return ", ".join(
                f"{setting.replace('_', ' ')} "
                + " and ".join(
                    in_seconds(median(s)) for s in timed["seconds_per_round"].values()
                )
                + f" a round ({timed['ratio']:.2f}x)"
                for setting, timed in found["replicates"].items()
            )
        case "s1_over_ideal":
            return ", ".join(
                f"{name}: {_ends(seconds, 's', 0)}, accuracy {s1['accuracy'][name]:.4f}"
                for name, seconds in s1["seconds"].items()
            )
        case "s1_busy":
            span = _ends(s1["rounds_seconds"], "s", 0)
            return f"{_ends(s1['busy'], digits=3)}, {span} from the first to the last round"
        case "empty_round_ms":
            return ", ".join(f"{on}: {ms:.2f} ms" for on, ms in found["empty"].items())
        case "pack_round_ms":
            return _ends(found["empty_pack"]["ms"], "ms")
        case "start_s":
            return _ends(found["start"]["seconds"], "s")
        case "further_run_s":
            one = _ends(trials["seconds_of_one"], "s")
            return f"one run: {one}, {trials['runs']:,}: {_ends(trials['seconds'], 's', 0)}"
        case "driver_growth_mb":
            mb = trials["driver_rss_mb"]
            return (
                f"driver {mb['quarter']:.0f} MB after a quarter, {mb['trials']:.0f} MB "
                f"after the last, {mb['report']:.0f} MB at the end"
            )
        case "report_s":
            return _ends(trials["report_seconds"], "s")
    return "MLflow's database included"


def _ends(values: Sequence[float], unit: str = "", digits: int = 2) -> str:
    """Write the least and the most of some numbers."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f} {unit}".rstrip()


# A GPU.

# The names of the floors, as the table writes them.
FLOORS = {"launches": "launches", "bytes": "bandwidth", "flop": "FLOP"}
RATES = (
    ("launch_us", "a launch", 1, " us"),
    ("graph_node_us", "in a graph", 1, " us"),
    ("copy_bytes_per_s", "copy", 1e9, " GB/s"),
    ("float32_flop_per_s", "float32", 1e12, " TFLOP/s"),
    ("tf32_flop_per_s", "tf32", 1e12, " TFLOP/s"),
    ("bfloat16_flop_per_s", "bfloat16", 1e12, " TFLOP/s"),
)


def gpu(found: Found) -> str:
    """Write what `gpu` has found, beside the floors; the device and its rates stand above."""
    device = found.measures.get("device_is", {"name": "unknown"})
    rates = found.measures.get("rates", {})
    told = [str(device["name"])]
    if "memory_mb" in device:
        told += [
            f"{device['memory_mb'] / 1e3:.0f} GB",
            f"compute capability {device['capability']}",
            f"driver {device['driver'] or 'unknown'}",
            f"CUDA {device['cuda']}",
        ]
    told += [
        f"{text} {in_digits(rates[key] / by)}{unit}"
        for key, text, by, unit in RATES
        if key in rates
    ]
    body = table(("measure", "value", "floor", "from"), list(gpu_rows(found.measures)))
    return f"{', '.join(told)}; {headline(found.origin)}.\n\n{body}"


def gpu_rows(found: Measures) -> Iterator[Row]:
    """Yield a row for each thing that was measured, then one for each part that was not.

    Each has the name, the value, the floor if it is known, and the numbers from which the
    value was computed, or why there is none.
    """
    yield from _difference_rows(found)
    yield from _bits_rows(found)
    yield from _engine_rows(found.get("engines", {}))
    for name in STANDARD:
        if name in found:
            yield from _workload_rows(name, found[name])
    if "s1" in found:
        s1 = found["s1"]
        yield (
            "S1 as one pack: over the plain loop, one replicate after the other",
            f"{found['s1_over_plain']:.2f}x",
            "",
            f"{s1['engine']}, {in_seconds(s1['pack_seconds_per_round'])} a round of "
            f"{s1['replicates']} replicates; plain "
            f"{in_seconds(s1['plain_seconds_per_round_of_one'])} a round of one",
        )
    for name, sizes in found.get("packs", {}).items():
        for size, pack in sizes.items():
            yield _pack_row(f"{name}, a pack of {int(size):,}", pack)
    yield from _memory_rows(found)
    yield from _convolution_rows(found.get("convolutions", {}).get("ways", {}))
    for name, by_how in found.get("processes", {}).items():
        for how, counts in by_how.items():
            told = how.replace("_", " ").replace("mps", "MPS")
            yield from _process_rows(f"{told}, packs of {name}", counts)
    for name, report in found["parts"].items():
        if report["state"] != "done":
            yield name, report["state"], "", report["reason"]


def _difference_rows(found: Measures) -> Iterator[Row]:
    """Yield the largest difference from the CPU's loop in each precision."""
    for precision in ("float32", "tf32", "bfloat16"):
        value = found.get(f"difference_{precision}")
        if value is None:
            continue
        made_of = "; ".join(
            f"{model}: " + ", ".join(_of_engines(engines[precision]))
            for model, engines in found["agreement"].items()
            if precision in engines
        )
        name = f"largest difference from the CPU's loop, {precision}"
        yield name, in_digits(value), "", made_of


def _of_engines(ends: Measures) -> Iterator[str]:
    """Yield each engine's difference; of those that refuse a model nothing is said."""
    for engine, end in ends.items():
        if "difference" in end:
            yield f"{engine} {in_digits(end['difference'])}"
        elif "failed" in end:
            yield f"{engine} failed"


def _bits_rows(found: Measures) -> Iterator[Row]:
    """Yield whether bits are equal in two processes, and alone and in a pack."""
    for how, where in (
        ("twice", "in two processes"),
        ("in_a_pack", "alone and in a pack"),
    ):
        value = found.get(f"same_bits_{how}")
        if value is None:
            continue
        differ = ", ".join(
            f"{model} {engine}"
            for model, engines in found["determinism"].items()
            for engine, same in engines.items()
            if same.get(how) is False
        )
        made_of = f"differ: {differ}" if differ else "all models and engines"
        yield f"the same bits {where}", "yes" if value else "no", "", made_of


def _engine_rows(found: Measures) -> Iterator[Row]:
    """Yield the time of a round by each engine, or why there is none."""
    for name, ends in found.items():
        for engine, end in ends.items():
            title = f"{name} by the engine {engine}"
            if "round_ms" in end:
                value = f"{in_seconds(end['round_ms'] / 1e3)} a round"
                yield title, value, "", _memory(end["device_mb"])
            else:
                yield title, "not measured", "", str(next(iter(end.values())))


def _workload_rows(name: str, one: Measures) -> Iterator[Row]:
    """Yield a workload over the plain loop, in each precision, and over the CPU."""
    yield (
        f"{name}: over the plain loop on this device",
        f"{one['speedup_vs_plain']:.2f}x",
        "",
        f"{one['engine']}, {in_seconds(one['seconds_per_round'])} a round, plain "
        f"{in_seconds(one['plain_seconds_per_round'])}; accuracy {one['accuracy']:.3f}, "
        f"plain {one['plain_accuracy']:.3f}; {_memory(one['device_mb'])}, plain "
        f"{_memory(one['plain_device_mb'])}",
    )
    for other in ("tf32", "bfloat16"):
        if coarse := one.get(other):
            yield (
                f"{name} in {other}: over the plain loop in float32",
                f"{coarse['speedup_vs_plain']:.2f}x",
                "",
                f"{coarse['engine']}, {in_seconds(coarse['seconds_per_round'])} a "
                f"round; accuracy {coarse['accuracy']:.3f}",
            )
    if cpu := one.get("cpu"):
        yield (
            f"{name}: over raysafl on one core of the CPU",
            f"{cpu['speedup_of_ours']:.2f}x",
            "",
            f"{cpu['engine']}, {in_seconds(cpu['seconds_per_round'])} a round on the CPU",
        )


def _memory(mb: float | None) -> str:
    return "memory unknown" if mb is None else f"{mb:,.0f} MB"


def _pack_row(title: str, pack: Measures) -> Row:
    """Make the row of a pack beside its floor."""
    if "round_ms" not in pack:
        return title, "not measured", "", str(next(iter(pack.values())))
    floor = ""
    if bound := pack.get("bound_by"):
        ms = pack["floors_ms"][bound]
        floor = (
            f"{in_seconds(ms / 1e3)} a round by {FLOORS[bound]}, "
            f"{pack['share_of_floor']:.0%} reached"
        )
    calls = pack.get("calls", {})
    counted = f"; {calls['launches']:,} launches a round" if calls else ""
    if "kernels_ms" in calls:
        counted += f", kernels of {in_seconds(calls['kernels_ms'] / 1e3)} in all"
    if "busy_ms" in calls:
        counted += f", the device computes {in_seconds(calls['busy_ms'] / 1e3)}"
    return (
        title,
        f"{in_digits(pack['run_rounds_per_s'])} rounds of a run/s",
        floor,
        f"{pack['engine']}, {in_seconds(pack['round_ms'] / 1e3)} a round; "
        f"{_memory(pack['memory_mb'])}{counted}",
    )


def _memory_rows(found: Measures) -> Iterator[Row]:
    """Yield how memory has grown from the 5th to the last trial."""
    for kind in ("allocated", "reserved"):
        if (growth := found.get(f"{kind}_growth_mb")) is not None:
            mb = found["memory"][f"{kind}_mb"]
            yield (
                f"{kind} memory, from trial 5 to {len(mb)}",
                f"{growth:+,.1f} MB",
                "",
                f"{_memory(mb[0])} after the first, {_memory(mb[-1])} after the last",
            )


def _convolution_rows(ways: Measures) -> Iterator[Row]:
    """Yield a local step of stacked convolutions by each way and precision."""
    for tasks, by_precision in ways.items():
        for precision, by_way in by_precision.items():
            for name, one in by_way.items():
                title = f"a step of {tasks} tasks of W2 in {precision}: {name}"
                if "failed" in one:
                    yield title, "failed", "", one["failed"]
                    continue
                floor = ""
                if "share_of_floor" in one:
                    floor = f"{one['share_of_floor']:.0%} of the FLOP's floor reached"
                alone = "the same" if one["same_bits_in_a_pack"] else "other"
                made_of = (
                    f"differs from the loop by {in_digits(one['difference'])}; alone a "
                    f"task has {alone} bits"
                )
                yield title, in_seconds(one["step_ms"] / 1e3), floor, made_of


def _process_rows(how: str, counts: Measures) -> Iterator[Row]:
    """Yield what several processes on the device reach at once."""
    if "skipped" in counts:
        yield f"processes {how}", "not measured", "", counts["skipped"]
        return
    for count, one in counts.items():
        title = f"{count} process{'' if count == '1' else 'es'} {how}"
        if "skipped" in one:
            yield title, "not measured", "", one["skipped"]
            continue
        rate = f"{in_digits(one['run_rounds_per_s'])} rounds of a run/s"
        slowest = f"{in_seconds(one['round_ms'] / 1e3)} a round of the slowest"
        yield title, rate, "", f"{slowest}; {_memory(one['device_mb'])} each"


# Other frameworks.


def rivals(found: Found) -> str:
    """Write what `rivals` has found: a row a contestant, a column a workload."""
    names = [name for name in found.measures if re.fullmatch(r"W\d", name)]
    kinds = dict.fromkeys(kind for name in names for kind in found.measures[name])
    body = [
        [kind, *(_contestant(found.measures[name], kind) for name in names)]
        for kind in kinds
    ]
    versions = "; ".join(found.origin["rivals"].values()) or "none"
    said = f"{headline(found.origin)}. Rivals: {versions}."
    return f"{said}\n\n" + table(["", *names], body)


def _contestant(results: Measures, kind: str) -> str:
    if kind not in results:
        return ""
    own = results[kind]
    seconds = own["seconds_per_round"]
    gain = results["plain loop"]["seconds_per_round"] / seconds
    return (
        f"**{_ms(seconds)}** ({_ms(min(own['repeats']))} to {_ms(max(own['repeats']))})"
        f"<br>{gain:.2f}x plain; {own['samples_per_s']:,.0f} samples/s"
        f"<br>{own['wall_seconds']:.1f} s in all; {own['peak_rss_mb'] / 1000:.1f} GB; "
        f"{own['accuracy']:.3f}"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


# Engines.


def engines(found: Found) -> str:
    """Write what `engines` has found: a table for each network."""
    origin = found.origin
    rates = found.measures
    parts = [
        f"{origin['device']}, {origin['threads']} CPU thread(s); {origin['machine']}; "
        f"{origin['date']}; commit {origin['commit'] or 'unknown'}; torch "
        f"{origin['versions']['torch']}. Measured rates: best product or convolution "
        f"{rates['flop_per_s'] / 1e9:,.0f} GFLOP/s in float32, "
        f"{rates['bfloat16_flop_per_s'] / 1e9:,.0f} in bfloat16; copy "
        f"{rates['bytes_per_s'] / 1e9:,.0f} GB/s."
    ]
    for model, measured in rates.get("models", {}).items():
        said = ", ".join(
            f"B = {batch}: {flop / 1e6:,.0f}, {moved / 1e6:,.1f}"
            for batch, (flop, moved) in measured["flop_and_bytes"].items()
        )
        parts.append(f"{model}. MFLOP and MB of one step of one client: {said}.")
        parts.append(_engines_table(measured["rows"]))
    return "\n\n".join(parts)


def _engines_table(found: Sequence[Measures]) -> str:
    """Write the table of one network: a row a case, a column an engine."""
    names = list(dict.fromkeys(row["engine"] for row in found))
    by = {(row["engine"], row["clients"], row["batch"]): row for row in found}
    floors = {row["batch"]: row["floor_samples_per_s"] for row in reversed(found)}
    body = []
    for m, batch in sorted({(row["clients"], row["batch"]) for row in found}):
        cells = [_rate(by.get((name, m, batch)), floors[batch]) for name in names]
        body.append([str(m), str(batch), *cells, f"{floors[batch]:,.0f}"])
    return table(["m", "B", *names, "floor"], body)


def _rate(row: Measures | None, floor: float) -> str:
    if row is None:
        return ""
    if "skipped" in row:
        return f"skipped ({row['skipped'].splitlines()[0]})"
    once = "*" if row.get("repeats") == 1 else ""
    return f"{row['samples_per_s']:,.0f}{once} ({row['samples_per_s'] / floor:.0%})"
