"""Fill the numbers of the documents from results/measured.

    python -m experiments.tools.reproduction           # write the numbers
    python -m experiments.tools.reproduction --check   # fail if they are outdated

Run it from the repository's root; `RAYSAFL_DATA` must name a folder with the curves of
FAST's authors (`fast_authors/curves.parquet`). The tables of docs/reproduction.md, docs/answers.md
and results/README.md stand between markers (`<!-- name -->`), and each is made by one
function. In experiments/README.md the last column of the tables is filled; its column of
hours is written by hand, and docs/reproduction.md takes it from there.
"""

import re
import sys
from collections import defaultdict

import numpy as np

from experiments.fast.against_authors import window_verdicts
from experiments.papercheck.judging import (
    EVERYWHERE,
    NOT_LEARNT,
    bias,
    check_claim,
    distance,
    matching,
)
from experiments.tools.answers import differences, standing, with_intervals
from experiments.tools.measured import (
    MEASURED,
    PAPERS,
    PICTURES,
    ROOT,
    compared,
    measured_folders,
    sweeps,
)
from experiments.tools.open_choices import (
    odd_entry,
    places,
    safari_readings,
    safari_readings_n0,
    spreads,
)
from raysafl.core.text import count, duration
from raysafl.report.analysis.evidence import LEVEL, t_quantile
from raysafl.report.analysis.layout import labels_text
from raysafl.report.pages.document import pipe_table
from raysafl.report.wording import (
    NOTHING,
    number,
    signed,
    signed_spread,
    spread,
)
from raysafl.storage.manifest import PAPER

# How many numbers are inside, how many would be if nothing differed, and the median of
# their intervals in points, which says what difference could be seen.
JUDGED = ["inside", "expected", "interval"]
# The probability of at most two standard deviations.
TWO_DEVIATIONS = 0.954
LARGEST = 12  # number of the largest differences that are listed
FACTORIALS = ("factorial_mnist", "factorial_small")
# Methods of `pareto_server_data` that docs/answers_server_data.md compares.
AGAINST = [
    ("FSL", "server alone"),
    ("data sharing", "server alone"),
    ("SAFARI, q = 0.5", "server alone"),
    ("data sharing", "FSL"),
]
# The snapshots and the server rounds that docs/answers_enforced.md compares.
BOTH = [
    ("both in half of the rounds - server rounds alone", (0.5, 0.5), (0, 0.5)),
    ("both in half of the rounds - snapshots alone", (0.5, 0.5), (0.5, 0)),
    ("server rounds alone - snapshots alone", (0, 0.5), (0.5, 0)),
]
# Sweeps that are held against the curves of FAST's authors, and the names of their data.
CURVES = {
    "fast_curves_fashion_mnist": "fashion",
    "fast_curves_cifar10": "cifar10",
    "fast_table3_fashion_mnist": "fashion",
}
# Files whose last column is written by hand: scripts, and pictures of data and cohorts.
SCRIPTS = "|".join(("safari/theorem1", "fsl/figure9", "theorems/", *PICTURES))


def tables_with_paper():
    """Return the names of SAFARI's tables that have printed numbers."""
    return [
        name
        for name in sweeps()
        if name.startswith("safari_table") and compared(name).paper
    ]


def items():
    """Return a line for each item of the papers: what was run of it, and what came out."""
    rows = []
    text = (ROOT / "experiments/README.md").read_text()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        of_paper = cells[1:] and cells[1].startswith(tuple(f"`{p}/" for p in PAPERS))
        if len(cells) == 7 and of_paper and "open choices" not in cells[0]:
            item, file, data, _, hours, _, measured = cells
            rows.append(
                [f"{item}, {data}", *_outcome(file.strip("`"), hours, measured)]
            )
    head = ["item", "run at scale", "distance", *JUDGED, "claims that hold", "missing"]
    return pipe_table(head, rows, 2)


def _outcome(file, hours, measured):
    """Return what was run of an item, and what came out of it.

    Args:
        file: Its path, relative to `experiments`.
        hours: What experiments/README.md says the paper's scale takes.
        measured: What it says was run.
    """
    folders = measured_folders(file)
    if not folders and "in seconds" in measured:
        return [PAPER, *[NOTHING] * 6]
    if not folders:
        return ["not run", *[NOTHING] * 5, f"all: {hours}"]
    found = compared(folders[0])
    manifest = sweeps()[folders[0]].manifest
    checked = [check_claim(claim, found) for claim in found.comparison.claims]
    held = sum(verdict.held == verdict.places > 0 for verdict in checked)
    known = sum(verdict.places > 0 for verdict in checked)
    missing = NOTHING
    if manifest.scale != PAPER:
        missing = f"scale `paper`: {hours}"
    elif unended := _unended(sweeps()[folders[0]]):
        missing = f"{unended} of {len(manifest.entries)} runs; {hours} in all"
    return [
        manifest.scale,
        *_distance_and_verdict(folders[0]),
        f"{held} of {known}" if known else NOTHING,
        missing,
    ]


def _distance_and_verdict(folder):
    """Return the mean distance of a sweep in points, and the cells of `JUDGED`."""
    if folder in CURVES:
        windows = window_verdicts(MEASURED / folder, CURVES[folder])
        return [
            number(windows["distance"].abs().mean(), "%"),
            *_judged(windows, windows["allowed"].astype(float), TWO_DEVIATIONS),
        ]
    found = compared(folder)
    points = 100 / found.manifest.table.scale
    gap = distance(found).difference * points
    if np.isnan(gap):
        return [NOTHING] * 4
    judged = found.entries[found.entries["verdict"] != ""]
    inside, *others = _judged(judged, judged["half.diff"] * points, LEVEL)
    printed = printed_numbers_of(judged, found.manifest.axes)
    if printed < len(judged):
        inside += f" ({printed} printed numbers)"
    return [number(gap, "%"), inside, *others]


def _judged(judged, half, level):
    """Return the cells of `JUDGED`.

    Args:
        judged: A row per number that was judged, with its `verdict`.
        half: Half the width of each interval, in points.
        level: The probability that a number lies inside if nothing differs.
    """
    inside = int((judged["verdict"] == "inside").sum())
    return [
        f"{inside} of {len(judged)}",
        f"{level * len(judged):.1f}",
        f"± {half.median():.1f}",
    ]


def printed_numbers_of(judged, axes):
    """Return how many numbers the paper prints for some entries.

    An axis whose label changes no printed number, such as a tuned value, is ours.
    """
    labels = [f"label.{axis}" for axis in axes]
    for axis in tuple(labels):
        others = [name for name in labels if name != axis]
        if others and judged.groupby(others)["paper.mean"].nunique().max() == 1:
            labels = others
    return judged.groupby(labels).ngroups


def _unended(sweep):
    """Return how many of a sweep's runs have not ended."""
    listed = {entry.run_id for entry in sweep.manifest.entries}
    return len(listed - {entry.run_id for entry in sweep.ended})


def overview():
    """Return a line per table: distance and bias to the paper's, and how it is judged."""
    rows = []
    for name in tables_with_paper():
        found = compared(name)
        unit = found.manifest.table.unit
        total = distance(found)
        printed = (
            NOTHING if np.isnan(total.printed_std) else number(total.printed_std, unit)
        )
        whole = bias(found).iloc[0]
        seeds = sorted(set(found.entries["partitions"].astype(int)))
        rows.append(
            [
                f"`{name}`",
                " or ".join(map(str, seeds)),
                str(total.entries),
                number(total.difference, unit),
                signed_spread(whole["diff"], whole["half"], unit),
                printed,
                *_distance_and_verdict(name)[1:],
            ]
        )
    head = ["table", "partitions", "entries", "distance", "bias ± 95%"]
    return pipe_table([*head, "printed spread", *JUDGED], rows, 1)


def count_outside(name, statistic, group):
    """Return "k of n": how many printed numbers of a group our runs do not give.

    Args:
        name: The sweep's folder in results/measured.
        statistic: The statistic that is compared.
        group: "axis = value", or any other text for all entries.
    """
    found = compared(name, statistic)
    entries = found.entries
    axis, _, value = group.partition(" = ")
    if value:
        entries = entries[entries[f"label.{axis}"].astype(str) == value]
    printed = entries[entries[f"diff.{found.name}"].notna()]
    return f"{int((printed['verdict'] == 'outside').sum())} of {len(printed)}"


def distances():
    """Return the mean absolute differences to the paper, for each statistic."""
    names = ["final", "last10", "best", "best5", "after_server"]
    groups = (EVERYWHERE, "method = FedAvg", "method = SAFARI")
    rows = []
    for name in tables_with_paper():
        found = compared(name)
        matches = matching(found)
        matches = matches[matches["group"].isin(groups)]
        for group, statistics in matches.groupby("group", sort=False):
            distance = dict(
                zip(statistics["statistic"], statistics["distance"], strict=True)
            )
            nearest = statistics[statistics["best"]]["statistic"].iloc[0]
            texts = [
                number(distance[n], "%") if n in distance else NOTHING for n in names
            ]
            outside = [
                count_outside(name, statistic, group)
                for statistic in (found.name, nearest)
            ]
            rows.append([f"`{name}`", group, *texts, nearest, *outside])
    head = ["sweep", "entries", *names, "nearest", "outside", "outside by the nearest"]
    return pipe_table(head, rows, 2)


def largest_differences():
    """Return the entries that are furthest from the paper, each one once."""
    differences = {}
    for name in tables_with_paper():
        found = compared(name)
        own, axes = found.name, found.manifest.axes
        entries = found.entries
        for _, entry in entries[entries["verdict"] == "outside"].iterrows():
            labels = labels_text({axis: entry[f"label.{axis}"] for axis in axes}, axes)
            row = [
                f"`{name}`",
                labels,
                spread(entry[f"mean.{own}"], entry[f"std.{own}"], "%"),
                spread(entry["paper.mean"], entry["paper.std"], "%"),
                signed(entry[f"diff.{own}"], "%"),
                signed(entry["z"], "%"),
            ]
            key = (entry["run_id"], entry["paper.mean"])
            differences.setdefault(key, (abs(entry[f"diff.{own}"]), row))
    rows = [row for _, row in sorted(differences.values(), key=lambda pair: -pair[0])]
    total = (
        f"{count(len(rows), 'entry')} in all, entries that tables share counted once"
    )
    head = ["sweep", "entry", "ours", "paper", "Δ", "z"]
    table = pipe_table(head, rows[:LARGEST], 2)
    return f"{total}; the {min(LARGEST, len(rows))} largest:\n\n{table}"


def claims():
    """Return how many claims of each sweep hold, and which do not or cannot be judged."""
    rows = []
    broken = []
    for name, sweep in sweeps().items():
        found = compared(name)
        if not found.comparison.claims:
            continue
        verdicts = [check_claim(claim, found) for claim in found.comparison.claims]
        whole = sum(verdict.held == verdict.places > 0 for verdict in verdicts)
        part = sum(0 < verdict.held < verdict.places for verdict in verdicts)
        unjudged = sum(verdict.places == 0 for verdict in verdicts)
        counts = (
            *(len(verdicts), whole, part),
            *(len(verdicts) - whole - part - unjudged, unjudged),
        )
        rows.append([f"`{name}`", sweep.manifest.scale, *map(str, counts)])
        broken += [
            [f"`{name}`", *_broken_claim(verdict, found.name)]
            for verdict in verdicts
            if verdict.held < verdict.places or verdict.verdict == NOT_LEARNT
        ]
    total = ["all", "", *(str(sum(int(row[i]) for row in rows)) for i in range(2, 7))]
    head = ["sweep", "scale", "claims", "hold", "hold at some places", "do not hold"]
    head += ["cannot be judged"]
    summary = pipe_table(head, [*rows, total], 2)
    text = (
        "Those that do not hold everywhere, or cannot be judged because entries are near "
        "chance (the last column: mean difference or value). Those whose entries have not "
        "been run cannot be judged, either:"
    )
    head = ["sweep", "the paper (or the file) says", "looked at", "verdict", ""]
    return f"{summary}\n\n{text}\n\n{pipe_table(head, broken, 4)}"


def _broken_claim(verdict, name):
    effect = NOTHING if np.isnan(verdict.effect) else f"{verdict.effect:+.3g}"
    statistic = verdict.claim.statistic or name
    return [verdict.claim.text, f"`{statistic}`", verdict.verdict, effect]


def factorials():
    """Return the tables of the factorial studies that were measured."""
    return "\n\n".join(_factorial(name) for name in FACTORIALS if name in sweeps())


def _factorial(name):
    """Return algorithms by participation, and the share of main effects."""
    axes = [f"label.{axis}" for axis in sweeps()[name].manifest.axes]
    entries = compared(name).entries
    entries = entries[[*axes, "mean.last10"]].rename(columns={"mean.last10": "y"})

    # Sums of squares: of each axis' means about the total mean, and of all entries.
    squares = {
        axis.removeprefix("label."): float(
            (
                (entries.groupby(axis)["y"].transform("mean") - entries["y"].mean())
                ** 2
            ).sum()
        )
        for axis in axes
    }
    total = float(((entries["y"] - entries["y"].mean()) ** 2).sum())
    shares = ", ".join(f"{axis} {part / total:.0%}" for axis, part in squares.items())
    interactions = 1 - sum(squares.values()) / total

    columns = list(dict.fromkeys(entries["label.participation"]))
    per_seed = (
        sweeps()[name]
        .runs.assign(y=lambda runs: 100 * runs["last10"])
        .pivot_table(
            "y", ["label.algorithm", "seed"], "label.participation", sort=False
        )[columns]
        .assign(mean=lambda wide: wide.mean(axis=1))
    )
    order = list(dict.fromkeys(entries["label.algorithm"]))
    rows = [
        [str(label), *map(_with_interval_over_seeds, per_seed.loc[label].T.to_numpy())]
        for label in order
    ]
    of_all = per_seed.groupby("seed").mean().T.to_numpy()
    rows.append(["mean", *map(_with_interval_over_seeds, of_all)])

    lost = int(entries["y"].isna().sum())
    missing = f" {count(lost, 'entry')} without a number." if lost else ""
    text = (
        f"`{name}`: `last10`, mean of both partitions ± 95 % over seeds. Share of the variance of "
        f"entries explained by main effects: {shares}; interactions {interactions:.0%}."
        f"{missing}"
    )
    return f"{text}\n\n{pipe_table(['algorithm', *columns, 'mean'], rows, 1)}"


def _with_interval_over_seeds(values):
    """Write the mean of one value a seed ± half of its 95 % interval (Student's t)."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    half = error * t_quantile(np.asarray(len(values) - 1.0))
    return spread(float(values.mean()), float(half), "%")


def shared_runs():
    """Return how many runs several sweeps share, and whether they came out equal."""
    sweeps_of_run = defaultdict(list)
    for name, sweep in sweeps().items():
        # A run of other seeds is another one here, though it has the same id.
        for run in {(entry.run_id, len(entry.cells)) for entry in sweep.ended}:
            sweeps_of_run[run].append(name)
    several = {run: names for run, names in sweeps_of_run.items() if len(names) > 1}
    gaps = [_largest_gap(run_id, names) for (run_id, _), names in several.items()]
    unequal = [gap for gap in gaps if gap is not None]
    rest = ""
    if unequal:
        rest = (
            f"; the other {len(unequal)} differ by at most {max(unequal):.1g} in an "
            "accuracy"
        )
    equal = len(several) - len(unequal)
    return (
        f"{count(len(several), 'run')} of {len(sweeps_of_run)} stand in several sweeps. "
        f"{equal} of them are equal in every row and column but `seconds`{rest}."
    )


def _largest_gap(run_id, names):
    """Return the largest difference of a test accuracy, or None for equal rows."""
    stores = [sweeps()[name].store for name in names]
    first, *others = (store.rounds(run_id).drop(columns="seconds") for store in stores)
    if all(first.equals(other) for other in others):
        return None
    accuracy = first["test_accuracy"]
    return max(
        float((accuracy - other["test_accuracy"]).abs().max()) for other in others
    )


def _time_of_runs(sweep):
    """Return the sum of the runs' own times; what passes between two attempts is in none."""
    return duration(float(sweep.runs.drop_duplicates("run_id")["seconds"].sum()))


def measured_sweeps():
    """Return what was measured, how long it took, and on which processors."""
    rows = []
    for name, sweep in sweeps().items():
        runs = sweep.runs.drop_duplicates("run_id")
        seeds = sorted(set(sweep.runs.groupby("run_id").size()))
        planned = len(sweep.manifest.entries)
        unended = _unended(sweep)
        entries = f"{planned - unended} of {planned}" if unended else planned
        size = f"{entries} x {' or '.join(map(str, seeds))}"
        machine = (sweep.store.path / "machine.json").read_text()
        processors = sorted(set(re.findall(r'"cpu": "(\w+)"', machine)))
        processors += sorted(set(runs["device"]) - {"cpu"})
        commits = ", ".join(sorted({commit[:7] for commit in runs["commit"] if commit}))
        rows.append(
            [
                f"`{name}`",
                sweep.manifest.scale,
                size,
                _time_of_runs(sweep),
                ", ".join(processors),
                commits,
            ]
        )
    head = [
        "sweep",
        "scale",
        "entries x seeds",
        "time",
        "processors",
        "commit",
    ]
    return pipe_table(head, rows, 3)


def fill_measured_column(text):
    """Return experiments/README.md with the last column of its tables made anew."""

    def fill(match):
        line, file = match[1], match[2]
        measured = [sweeps()[folder] for folder in measured_folders(file)]
        times = []
        for sweep in measured:
            took = _time_of_runs(sweep)
            unended = _unended(sweep)
            part = f", {count(unended, 'run')} missing" if unended else ""
            times.append(f"`{sweep.manifest.scale}` in {took}{part}")
        return f"{line}| {'; '.join(times) or 'not run'} |"

    return re.sub(
        rf"^(\|.*`(?!{SCRIPTS})(\w+/\w+)\.py`.*)\|[^|]*\|$",
        fill,
        text,
        flags=re.MULTILINE,
    )


def _halves(snapshots, server_rounds):
    """Return the labels of an entry of `safari_and_fast`."""
    return {"snapshots": snapshots, "server rounds": server_rounds}


SECTIONS = {  # document -> marker -> what stands there
    "docs/reproduction.md": {
        "items": items,
        "overview": overview,
        "tables": distances,
        "largest": largest_differences,
        "readings": safari_readings,
        "readings n0": safari_readings_n0,
        "odd entry": odd_entry,
        "spreads": spreads,
        "places": places,
        "claims": claims,
        "shared": shared_runs,
    },
    "docs/answers.md": {
        "standing": lambda: standing("factorial_mnist"),
        "factorials": factorials,
    },
    "docs/answers_server_data.md": {
        "server data": lambda: with_intervals(
            "pareto_server_data", ["p", "method"], "n0"
        ),
        "server data, differences": lambda: differences(
            "pareto_server_data",
            [
                (f"{first} - {second}", {"method": first}, {"method": second})
                for first, second in AGAINST
            ],
            ["p"],
            "n0",
        ),
    },
    "docs/answers_enforced.md": {
        "enforced rounds": lambda: with_intervals(
            "pareto_enforced_rounds", ["participation", "method"], "q"
        ),
        "both": lambda: with_intervals(
            "safari_and_fast", ["n0", "snapshots"], "server rounds"
        ),
        "both, differences": lambda: differences(
            "safari_and_fast",
            [(text, _halves(*first), _halves(*second)) for text, first, second in BOTH],
            [],
            "n0",
        ),
    },
    "results/README.md": {"measured": measured_sweeps},
}


def fill_sections(text, sections):
    """Return a document with the text between its markers made anew.

    Args:
        text: The document.
        sections: The name of each marker, and the function that makes its text.
    """
    for name, make in sections.items():
        begin = f"<!-- {name} -->\n"
        end = f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        assert found and end in rest, f"there is no section '{name}' in this document"
        text = f"{head}{begin}\n{make()}\n\n{end}{rest.partition(end)[2]}"
    return text


def main():
    """Write the documents whose numbers changed, or only name them with --check."""
    old = {
        name: (ROOT / name).read_text() for name in (*SECTIONS, "experiments/README.md")
    }
    new = {
        name: fill_sections(old[name], sections) for name, sections in SECTIONS.items()
    }
    new["experiments/README.md"] = fill_measured_column(old["experiments/README.md"])
    outdated = [name for name in old if old[name] != new[name]]
    if "--check" in sys.argv[1:]:
        command = "python -m experiments.tools.reproduction"
        raise SystemExit(
            f"out of date: {', '.join(outdated)}; run {command}" if outdated else 0
        )
    for name in outdated:
        (ROOT / name).write_text(new[name])


if __name__ == "__main__":
    main()
