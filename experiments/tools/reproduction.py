"""The numbers of docs/reproduction.md, results/README.md and README.md here, from results/measured.

python -m experiments.tools.reproduction           writes them between their markers
python -m experiments.tools.reproduction --check   exits with 1 if they are not up to date
"""

import re
import sys
from collections import defaultdict
from datetime import datetime

import numpy as np

from experiments.tools.measured import MEASURED, ROOT, judged, sweeps
from experiments.tools.open_choices import fast_readings, nearest_readings, odd_cell, readings_n0
from raysafl.report.analysis.cells import EVERYWHERE, matching
from raysafl.report.analysis.claims import judge as judge_claim
from raysafl.report.analysis.layout import place
from raysafl.report.pages.markdown import grid
from raysafl.report.pages.origin import duration
from raysafl.report.wording import NOTHING, count, number, signed, spread

FAR = 2  # combined standard deviations
LARGEST = 12  # differences that are listed
FACTORIALS = ("factorial_mnist", "factorial_small")


def printed():
    """The sweeps with printed numbers."""
    return [name for name, (manifest, _, _) in sweeps().items() if manifest.table.paper]


def off(name, statistic, group):
    """How many cells of a group are far from the paper, of how many."""
    cells, shown = judged(name, statistic)
    axis, _, value = group.partition(" = ")
    if value:
        cells = cells[cells[f"label.{axis}"].astype(str) == value]
    known = cells[cells[f"diff.{shown.table.statistic}"].notna()]
    return f"{int((known['deviations'] > FAR).sum())} of {len(known)}"


def tables():
    names = ["final", "last10", "best", "after_server"]
    body = []
    for name in (n for n in printed() if not n.startswith("safari_readings")):
        cells, shown = judged(name)
        found = matching(cells, shown)
        found = found[found["group"].isin((EVERYWHERE, "method = FedAvg", "method = SAFARI"))]
        for group, rows in found.groupby("group", sort=False):
            far = dict(zip(rows["statistic"], rows["distance"], strict=True))
            nearest = rows[rows["best"]]["statistic"].iloc[0]
            texts = [number(far[n], "%") if n in far else NOTHING for n in names]
            own = shown.table.statistic
            far_off = [off(name, statistic, group) for statistic in (own, nearest)]
            body.append([f"`{name}`", group, *texts, nearest, *far_off])
    head = ["sweep", "cells", *names, "nearest", "off by `best`", "off by the nearest"]
    return grid(head, body, 2)


def largest():
    found = {}
    for name in (n for n in printed() if not n.startswith("safari_readings")):
        cells, shown = judged(name)
        own = shown.table.statistic
        for _, cell in cells[cells["deviations"] > FAR].iterrows():
            where = place({a: cell[f"label.{a}"] for a in shown.axes}, shown.axes)
            key = (cell["run_id"], cell["paper.mean"])  # tables share cells
            row = [f"`{name}`", where, spread(cell[f"mean.{own}"], cell[f"std.{own}"], "%")]
            row += [spread(cell["paper.mean"], cell["paper.std"], "%")]
            row += [signed(cell[f"diff.{own}"], "%"), f"{cell['deviations']:.1f}"]
            found.setdefault(key, (abs(cell[f"diff.{own}"]), row))
    rows = [row for _, row in sorted(found.values(), key=lambda pair: -pair[0])]
    told = f"{count(len(rows), 'cell')} in all, cells that tables share counted once"
    head = ["sweep", "cell", "ours (`best`)", "paper", "Δ", "Δ / std"]
    return f"{told}; the {min(LARGEST, len(rows))} largest:\n\n{grid(head, rows[:LARGEST], 2)}"


def claims():
    rows, broken = [], []
    for name, (manifest, _, _) in sweeps().items():
        if not manifest.claims:
            continue
        cells, shown = judged(name)
        found = [judge_claim(claim, cells, shown) for claim in shown.claims]
        whole = sum(j.held == j.places > 0 for j in found)
        part = sum(0 < j.held < j.places for j in found)
        rows.append([f"`{name}`", manifest.scale, *map(str, (len(found), whole, part))])
        rows[-1].append(str(len(found) - whole - part))
        for j in found:
            if j.held < j.places or not j.places:
                effect = NOTHING if np.isnan(j.effect) else f"{j.effect:+.3g}"
                statistic = j.claim.statistic or shown.table.statistic
                broken.append([f"`{name}`", j.claim.text, f"`{statistic}`", j.verdict, effect])
    total = ["all", "", *(str(sum(int(row[i]) for row in rows)) for i in range(2, 6))]
    head = ["sweep", "scale", "claims", "hold", "hold at some places", "do not hold"]
    told = "Those that do not hold everywhere (the last column: mean difference or value):"
    more = grid(["sweep", "the paper (or the file) says", "looked at", "verdict", ""], broken, 4)
    return f"{grid(head, [*rows, total], 2)}\n\n{told}\n\n{more}"


def factorials():
    return "\n\n".join(_factorial(name) for name in FACTORIALS if name in sweeps())


def _factorial(name):
    manifest, _, _ = sweeps()[name]
    cells, _ = judged(name)
    axes = [f"label.{axis}" for axis in manifest.axes]
    cells = cells[[*axes, "mean.last10"]].rename(columns={"mean.last10": "y"})
    lost = cells["y"].isna()
    sums = {
        axis.removeprefix("label."): float(
            ((cells.groupby(axis)["y"].transform("mean") - cells["y"].mean()) ** 2).sum()
        )
        for axis in axes
    }
    total = float(((cells["y"] - cells["y"].mean()) ** 2).sum())
    shares = ", ".join(f"{axis} {part / total:.0%}" for axis, part in sums.items())
    rest = 1 - sum(sums.values()) / total
    wide = cells.pivot_table("y", "label.algorithm", "label.participation", sort=False)
    order = list(dict.fromkeys(cells["label.participation"]))
    wide = wide[order].assign(mean=wide[order].mean(axis=1))
    wide.loc["mean"] = wide.mean()
    body = [[str(at), *(number(y, "%") for y in row)] for at, row in wide.iterrows()]
    missing = f" {count(int(lost.sum()), 'cell')} without a number." if lost.any() else ""
    told = (
        f"`{name}`: `last10`, mean of both partitions. Share of the variance of cells explained "
        f"by main effects: {shares}; interactions {rest:.0%}.{missing}"
    )
    return f"{told}\n\n{grid(['algorithm', *map(str, wide.columns)], body, 1)}"


def shared():
    """Runs that several sweeps ran, and whether they came out equal."""
    where = defaultdict(list)
    for name, (manifest, _, _) in sweeps().items():
        for entry in manifest.entries:
            where[entry.run_id].append(name)
    several = {run_id: names for run_id, names in where.items() if len(names) > 1}
    apart = [gap for run_id, names in several.items() if (gap := _apart(run_id, names)) >= 0]
    rest = f"; the other {len(apart)} by at most {max(apart):.1g} in an accuracy" if apart else ""
    return (
        f"{count(len(several), 'run')} of {len(where)} stand in several sweeps and were run anew "
        f"for each. {len(several) - len(apart)} of them are equal in every row and column but "
        f"`seconds`{rest}."
    )


def _apart(run_id, names):
    """The largest difference of a test accuracy between sweeps; -1 if all columns are equal."""
    first, *others = (sweeps()[n][2].rounds(run_id).drop(columns="seconds") for n in names)
    if all(first.equals(other) for other in others):
        return -1.0
    accuracy = first["test_accuracy"]
    return max(float((accuracy - other["test_accuracy"]).abs().max()) for other in others)


def wall(runs):
    """Seconds in which any run was under way."""
    starts = [datetime.fromisoformat(text).timestamp() for text in runs["started"]]
    spans = sorted({(s, s + d) for s, d in zip(starts, runs["seconds"], strict=True)})
    end, busy = 0.0, 0.0
    for begin, stop in spans:
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return busy


def measured():
    body = []
    for name, (manifest, runs, store) in sweeps().items():
        each = runs.drop_duplicates("run_id")
        seeds = sorted(set(runs.groupby("run_id").size()))
        size = f"{len(manifest.entries)} x {' or '.join(map(str, seeds))}"
        took = [duration(wall(each)), duration(float(each["seconds"].sum()))]
        kind = re.search(r'"cpu": "(\w+)"', (store.path / "machine.json").read_text())
        commits = ", ".join(sorted({c[:7] for c in each["commit"] if c}))
        body.append([f"`{name}`", manifest.scale, size, *took, kind[1], commits])
    head = ["sweep", "scale", "cells x seeds", "wall time", "all runs' time", "CPU", "commit"]
    return grid(head, body, 3)


def status(text):
    """experiments/README.md with the last column of each file's line made anew."""

    def line(match):
        name, rest = match[2].removeprefix("studies/").replace("/", "_"), match[1]
        found = [
            (n, *sweeps()[n][:2])
            for n in (name, f"{name}-medium", f"{name}-small")
            if n in sweeps()
        ]
        told = [
            f"`{manifest.scale}` in {duration(wall(runs.drop_duplicates('run_id')))}"
            for _, manifest, runs in found
        ]
        return f"{rest}| {'; '.join(told) or 'not run'} |"

    scripts = "safari/theorem1|fsl/figure9"
    return re.sub(rf"^(\|.*`(?!{scripts})(\w+/\w+)\.py`.*)\|[^|]*\|$", line, text, flags=re.M)


def shown_first():
    """The README's table: that of one sweep, without the spreads."""
    text = (MEASURED / "safari_table8_mnist" / "table.md").read_text()
    lines = text[text.index("\n|") + 1 :].partition("\n\n")[0]
    return re.sub(r" ± [0-9.]+", "", lines).replace("(paper ", "(")


SECTIONS = {
    "README.md": {"table 8": shown_first},
    "docs/reproduction.md": {
        "tables": tables,
        "largest": largest,
        "readings": nearest_readings,
        "readings n0": readings_n0,
        "odd cell": odd_cell,
        "FAST's readings": fast_readings,
        "claims": claims,
        "factorials": factorials,
        "shared": shared,
    },
    "results/README.md": {"measured": measured},
}


def render(text, sections):
    """The text with every section between its markers made anew."""
    for name, section in sections.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        assert found and end in rest, f"no section {name}"
        text = f"{head}{begin}\n{section()}\n\n{end}{rest.partition(end)[2]}"
    return text


def main():
    old, new = {}, {}
    for name, sections in SECTIONS.items():
        old[name] = (ROOT / name).read_text()
        new[name] = render(old[name], sections)
    name = "experiments/README.md"
    old[name] = (ROOT / name).read_text()
    new[name] = status(old[name])
    stale = [name for name in old if old[name] != new[name]]
    if "--check" in sys.argv[1:]:
        told = f"{', '.join(stale)}: old; run python -m experiments.tools.reproduction"
        raise SystemExit(told if stale else 0)
    for name in stale:
        (ROOT / name).write_text(new[name])


if __name__ == "__main__":
    main()
