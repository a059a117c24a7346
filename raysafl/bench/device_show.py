"""The measurements of `raysafl bench --device` as rows of a table."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from raysafl.bench.wording import headline, in_digits, in_seconds

# The names of the floors, as a table writes them.
FLOORS = {"launches": "launches", "bytes": "bandwidth", "flop": "FLOP"}


class DeviceRow(NamedTuple):
    """One line of the table.

    Attributes:
        name: what is measured.
        value: the number with its unit.
        floor: what no program can undercut here; empty if it is not known.
        made_of: the numbers from which the value was computed, or why there is none.
    """

    name: str
    value: str
    floor: str
    made_of: str


def device_headline(found: Mapping[str, Any]) -> str:
    """Describe the device, its rates, the machine and the versions in one line."""
    device = found.get("device_is", {"name": "unknown"})
    told = [str(device["name"])]
    if "memory_mb" in device:
        told += [
            f"{device['memory_mb'] / 1e3:.0f} GB",
            f"compute capability {device['capability']}",
            f"driver {device['driver'] or 'unknown'}",
            f"CUDA {device['cuda']}",
        ]
    rates = found.get("rates", {})
    told += [
        f"{text} {in_digits(rates[key] / by)}{unit}"
        for key, text, by, unit in (
            ("launch_us", "a launch", 1, " us"),
            ("graph_node_us", "in a graph", 1, " us"),
            ("copy_bytes_per_s", "copy", 1e9, " GB/s"),
            ("float32_flop_per_s", "float32", 1e12, " TFLOP/s"),
            ("tf32_flop_per_s", "tf32", 1e12, " TFLOP/s"),
            ("bfloat16_flop_per_s", "bfloat16", 1e12, " TFLOP/s"),
        )
        if key in rates
    ]
    return f"{', '.join(told)}; {headline(dict(found))}"


def device_rows(found: Mapping[str, Any]) -> Iterator[DeviceRow]:
    """Yield a row for each thing that was measured, then one for each part that was not.

    Args:
        found: a result of `bench_device`, also one that lacks parts.
    """
    yield from _difference_rows(found)
    yield from _bits_rows(found)
    for name in ("W1", "W2", "W3", "W4"):
        if found.get(name):
            yield from _workload_rows(name, found[name])
    if found.get("s1_over_plain"):
        yield _s1_row(found)
    for name, sizes in found.get("packs", {}).items():
        for size, pack in sizes.items():
            yield _pack_row(name, size, pack)
    yield from _memory_rows(found)
    for how, counts in found.get("processes", {}).items():
        yield from _process_rows(how.replace("_", " ").replace("mps", "MPS"), counts)
    for name, report in found["parts"].items():
        if report["state"] != "done":
            reason = report["reason"].replace("\n", " ")
            yield DeviceRow(name, report["state"], "", reason)


def _difference_rows(found: Mapping[str, Any]) -> Iterator[DeviceRow]:
    """Yield the largest difference from the CPU's loop in each precision."""
    by_model = found.get("agreement", {})
    for precision in ("float32", "tf32", "bfloat16"):
        value = found.get(f"difference_{precision}")
        if value is None:
            continue
        made_of = "; ".join(
            f"{model}: " + ", ".join(_of_engines(engines[precision]))
            for model, engines in by_model.items()
            if precision in engines
        )
        name = f"largest difference from the CPU's loop, {precision}"
        yield DeviceRow(name, in_digits(value), "", made_of)


def _of_engines(ends: Mapping[str, Any]) -> Iterator[str]:
    """Yield each engine's difference; of those that refuse a model nothing is said."""
    for engine, end in ends.items():
        if "difference" in end:
            yield f"{engine} {in_digits(end['difference'])}"
        elif "failed" in end:
            yield f"{engine} failed"


def _bits_rows(found: Mapping[str, Any]) -> Iterator[DeviceRow]:
    """Yield whether bits are equal in two processes, and alone and in a pack."""
    names = {
        "twice": "the same bits in two processes",
        "in_a_pack": "the same bits alone and in a pack",
    }
    for how, name in names.items():
        value = found.get(f"same_bits_{how}")
        if value is None:
            continue
        differ = [
            f"{model} {engine}"
            for model, engines in found["determinism"].items()
            for engine, same in engines.items()
            if same.get(how) is False
        ]
        made_of = f"differ: {', '.join(differ)}" if differ else "all models and engines"
        yield DeviceRow(name, "yes" if value else "no", "", made_of)


def _workload_rows(name: str, one: Mapping[str, Any]) -> Iterator[DeviceRow]:
    """Yield a workload over the plain loop, in each precision, and over the CPU."""
    yield DeviceRow(
        f"{name}: over the plain loop on this device",
        f"{one['speedup_vs_plain']:.2f}x",
        "",
        f"{one['engine']}, {in_seconds(one['seconds_per_round'])} a round, plain "
        f"{in_seconds(one['plain_seconds_per_round'])}; accuracy {one['accuracy']:.3f}, "
        f"plain {one['plain_accuracy']:.3f}; {_memory(one['device_mb'])}, plain "
        f"{_memory(one['plain_device_mb'])}",
    )
    for other in ("tf32", "bfloat16"):
        if other in one:
            coarse = one[other]
            yield DeviceRow(
                f"{name} in {other}: over the plain loop in float32",
                f"{coarse['speedup_vs_plain']:.2f}x",
                "",
                f"{coarse['engine']}, {in_seconds(coarse['seconds_per_round'])} a "
                f"round; accuracy {coarse['accuracy']:.3f}",
            )
    if "cpu" in one:
        yield DeviceRow(
            f"{name}: over raysafl on one core of the CPU",
            f"{one['cpu']['speedup_of_ours']:.2f}x",
            "",
            f"{one['cpu']['engine']}, {in_seconds(one['cpu']['seconds_per_round'])} "
            "a round on the CPU",
        )


def _memory(mb: float | None) -> str:
    return "memory unknown" if mb is None else f"{mb:,.0f} MB"


def _s1_row(found: Mapping[str, Any]) -> DeviceRow:
    """Make the row of the sweep S1."""
    s1 = found["s1"]
    return DeviceRow(
        "S1 as one pack: over the plain loop, one replicate after the other",
        f"{found['s1_over_plain']:.2f}x",
        "",
        f"{s1['engine']}, {in_seconds(s1['pack_seconds_per_round'])} a round of "
        f"{s1['replicates']} replicates; plain "
        f"{in_seconds(s1['plain_seconds_per_round_of_one'])} a round of one",
    )


def _pack_row(name: str, size: str, pack: Mapping[str, Any]) -> DeviceRow:
    """Make the row of a pack beside its floor."""
    title = f"{name}, a pack of {int(size):,}"
    if "round_ms" not in pack:
        why = next(iter(pack.values()))
        return DeviceRow(title, "not measured", "", str(why))
    floor = ""
    if "floors_ms" in pack:
        bound = pack["bound_by"]
        floor = (
            f"{in_seconds(pack['floors_ms'][bound] / 1e3)} a round by {FLOORS[bound]}, "
            f"{pack['share_of_floor']:.0%} reached"
        )
    calls = pack.get("calls", {})
    counted = f"; {calls['launches']:,} launches a round" if calls else ""
    if "busy_ms" in calls:
        counted += f", the device computes {in_seconds(calls['busy_ms'] / 1e3)}"
    return DeviceRow(
        title,
        f"{in_digits(pack['run_rounds_per_s'])} rounds of a run/s",
        floor,
        f"{pack['engine']}, {in_seconds(pack['round_ms'] / 1e3)} a round; "
        f"{_memory(pack['memory_mb'])}{counted}",
    )


def _memory_rows(found: Mapping[str, Any]) -> Iterator[DeviceRow]:
    """Yield how memory has grown from the 5th to the last trial."""
    for kind in ("allocated", "reserved"):
        growth = found.get(f"{kind}_growth_mb")
        if growth is not None:
            mb = found["memory"][f"{kind}_mb"]
            yield DeviceRow(
                f"{kind} memory, from trial 5 to {len(mb)}",
                f"{growth:+,.1f} MB",
                "",
                f"{_memory(mb[0])} after the first, {_memory(mb[-1])} after the last",
            )


def _process_rows(how: str, counts: Mapping[str, Any]) -> Iterator[DeviceRow]:
    """Yield what several processes on the device reach at once."""
    if "skipped" in counts:
        yield DeviceRow(f"processes {how}", "not measured", "", counts["skipped"])
        return
    for count, one in counts.items():
        title = f"{count} process{'' if count == '1' else 'es'} {how}"
        if "skipped" in one:
            yield DeviceRow(title, "not measured", "", one["skipped"])
            continue
        yield DeviceRow(
            title,
            f"{in_digits(one['run_rounds_per_s'])} rounds of a run/s",
            "",
            f"{in_seconds(one['round_ms'] / 1e3)} a round of the slowest; "
            f"{_memory(one['device_mb'])} each",
        )
