"""The tables of benchmarks/README.md and docs/scale.md from the JSON beside this script.

python benchmarks/render.py            writes them between their markers
python benchmarks/render.py --check    fails (exit code 1) if they are not up to date
"""

import json
import re
import sys
from pathlib import Path

import prediction

from raysafl.bench.device_show import device_headline, device_rows
from raysafl.bench.show import bench_rows
from raysafl.bench.wording import headline

HERE = Path(__file__).parent
README = HERE / "README.md"
SCALE = HERE.parent / "docs" / "scale.md"
UNMEASURED = "Not measured yet: no `{}` here."


def read(name):
    file = HERE / name
    text = file.read_text() if file.is_file() else ""
    return json.loads(text) if text.strip() else None  # empty: a run that failed


def table(head, body):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def ms(seconds):
    return f"{1000 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def bench():
    found = read("bench.json")
    if not found:
        return UNMEASURED.format("bench.json")
    body = [
        (
            row.name,
            row.value,
            row.target,
            "**no**" if row.mark == "no" else row.mark,
            row.made_of,
        )
        for row in bench_rows(found)
    ]
    return f"{headline(found)}.\n\n" + table(
        ("measure", "value", "aim", "reached", "from"), body
    )


def gpu():
    found = read("gpu.json")
    if not found:
        return UNMEASURED.format("gpu.json")
    if found["dry"]:
        raise SystemExit(
            "gpu.json is of a dry run (--dry), which measures nothing: remove it, or "
            "write it with `raysafl bench --device cuda` on a machine with a GPU"
        )
    body = [[cell.replace("|", "/") for cell in row] for row in device_rows(found)]
    return f"{device_headline(found)}.\n\n" + table(
        ("measure", "value", "floor", "from"), body
    )


def rivals():
    found = read("rivals.json")
    if not found:
        return UNMEASURED.format("rivals.json")
    names = [name for name in found if re.fullmatch(r"W\d", name)]
    kinds = list(dict.fromkeys(kind for name in names for kind in found[name]))
    body = []
    for kind in kinds:
        body.append([kind, *(_cell(found[name], kind) for name in names)])
    versions = "; ".join(found["rivals"].values())
    said = f"{headline(found)}. Rivals: {versions or 'none'}."
    return f"{said}\n\n" + table(["", *names], body)


def _cell(results, kind):
    if kind not in results:
        return ""
    own, plain = results[kind], results["plain loop"]["seconds_per_round"]
    low, high = min(own["repeats"]), max(own["repeats"])
    return (
        f"**{ms(own['seconds_per_round'])}** ({ms(low)} to {ms(high)})"
        f"<br>{plain / own['seconds_per_round']:.2f}x plain; {own['samples_per_s']:,.0f} samples/s"
        f"<br>{own['wall_seconds']:.1f} s in all; {own['peak_rss_mb'] / 1000:.1f} GB; "
        f"{own['accuracy']:.3f}"
    )


def engines(device):
    name = f"engines-{device}.json"
    found = read(name)
    if not found:
        column = (
            "The GPU column is unmeasured" if device == "cuda" else "Not measured yet"
        )
        return f"{column}: no `{name}` here."
    parts = [
        f"{found['device']}, {found['threads']} CPU thread(s); {found['machine']}; "
        f"{found['date']}; commit {found['commit'] or 'unknown'}; torch "
        f"{found['versions']['torch']}. Measured rates: best product or convolution "
        f"{found['flop_per_s'] / 1e9:,.0f} GFLOP/s in float32, "
        f"{found['bfloat16_flop_per_s'] / 1e9:,.0f} in bfloat16; copy "
        f"{found['bytes_per_s'] / 1e9:,.0f} GB/s."
    ]
    for model, measured in found["models"].items():
        per_batch = measured["flop_and_bytes"].items()
        said = ", ".join(
            f"B = {b}: {f / 1e6:,.0f}, {m / 1e6:,.1f}" for b, (f, m) in per_batch
        )
        parts.append(f"{model}. MFLOP and MB of one step of one client: {said}.")
        parts.append(_engines(measured["rows"]))
    return "\n\n".join(parts)


def _engines(found):
    names = list(dict.fromkeys(row["engine"] for row in found))
    cases = sorted({(row["clients"], row["batch"]) for row in found})
    by = {(row["engine"], row["clients"], row["batch"]): row for row in found}
    body = []
    for case in cases:
        floor = next(
            row["floor_samples_per_s"] for row in found if row["batch"] == case[1]
        )
        cells = [_rate(by.get((name, *case)), floor) for name in names]
        body.append([*map(str, case), *cells, f"{floor:,.0f}"])
    return table(["m", "B", *names, "floor"], body)


def _rate(row, floor):
    if row is None:
        return ""
    if "skipped" in row:
        return f"skipped ({row['skipped'].split(chr(10))[0]})".replace("|", "/")
    once = "*" if row.get("repeats") == 1 else ""
    return f"{row['samples_per_s']:,.0f}{once} ({row['samples_per_s'] / floor:.0%})"


def predicted():
    """The tables of docs/scale.md, by the names of their sections."""
    scaling, bench = (read(name) or {} for name in ("scaling.json", "bench.json"))
    if lacking := prediction.missing(scaling, bench):
        text = f"Not measured yet: {', '.join(lacking)}."
        return dict.fromkeys(("measured", "predicted", "limits"), text)
    measured, quantities, limits = prediction.tables(scaling, bench)
    sweeps = ("small runs", "runs of S1")
    return {
        "measured": table(("number", "value", "from"), measured),
        "predicted": table(("quantity", "arithmetic", *sweeps), quantities),
        "limits": table(("what breaks", "limit", *sweeps, "what to do then"), limits),
    }


def of_scale(name):
    return lambda: predicted()[name]


SECTIONS = {
    README: {
        "bench": bench,
        "gpu": gpu,
        "rivals": rivals,
        "engines-cpu": lambda: engines("cpu"),
        "engines-cuda": lambda: engines("cuda"),
    },
    SCALE: {name: of_scale(name) for name in ("measured", "predicted", "limits")},
}


def render(file, text):
    """The text of a file with every section between its markers made anew."""
    for name, section in SECTIONS[file].items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        assert found and end in rest, f"{file.name} has no section {name}"
        text = f"{head}{begin}{section()}\n{end}{rest.partition(end)[2]}"
    return text


def main():
    for file in SECTIONS:
        old = file.read_text()
        new = render(file, old)
        if "--check" not in sys.argv[1:]:
            file.write_text(new)
        elif old != new:
            raise SystemExit(f"{file.name} is old: run benchmarks/render.py")


if __name__ == "__main__":
    main()
