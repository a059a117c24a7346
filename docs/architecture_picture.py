"""Draw docs/architecture.png: the path of one client's update, from request to row.

The numbers are those of a round of two small runs, which the script plays:

    python docs/architecture_picture.py
"""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

from raysafl import Uniform
from raysafl.core.work import Tasks
from raysafl.quickstart import BASE
from raysafl.runtime.exact_mean import combine_shares
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation

# What is said of the client that is followed has this colour, and begins with this mark.
COLOUR = "#d9541e"
MARK = "*"
GREY = "#5a6472"
COLUMNS = ["cell", "client", "round", "rate", "start", "averaged"]
CAPTION = (
    "In colour: client {} of the run in cell 0. With Ray, client actors do part 3 and the sums of "
    "part 4, each for the rows that it is sent."
)


class Part(NamedTuple):
    """A part of the path.

    Args:
        title: What happens.
        where: The file in which it happens.
        text: What the picture says of it, line by line.
    """

    title: str
    where: str
    text: str


# The lower left corners of the parts, and their size.
CORNERS = [
    (0.01, 0.55),
    (0.355, 0.55),
    (0.7, 0.55),
    (0.7, 0.06),
    (0.355, 0.06),
    (0.01, 0.06),
]
SIZE = (0.285, 0.43)
# Between two parts: where an arrow begins and ends, what moves along it, and where that is
# written.
ARROWS = [
    ((0.3, 0.77), (0.35, 0.77), "Lockstep", (0.301, 0.78)),
    ((0.645, 0.77), (0.695, 0.77), "rows", (0.655, 0.78)),
    ((0.84, 0.54), (0.84, 0.5), "updates [T, P]", (0.85, 0.515)),
    ((0.695, 0.27), (0.645, 0.27), "cell 0", (0.655, 0.28)),
    ((0.35, 0.27), (0.3, 0.27), "w_P", (0.315, 0.28)),
]


def played() -> tuple[list[Part], int]:
    """Play a round of two runs; return the parts, and the client that is followed."""
    base = BASE.replace(replicates=1, participation=Uniform(m=2))
    runs = [base.replace(seed=seed) for seed in (0, 1)]
    cells = [cell for run in runs for cell in run.cells]
    work = Worker(cells, base.data.load(), base.model)
    rounds = [Simulation(run, work, k).next_rounds()[0] for k, run in enumerate(runs)]
    asked: list[Any] = [next(own) for own in rounds]
    tasks = Tasks.of(asked)
    ((_, update),) = work.trainer.train_stacks(tasks)
    trained = combine_shares(tasks, [slice(None)], [work.train_share(tasks)])
    evaluation: Any = rounds[0].send(trained)
    try:
        rounds[0].send(evaluation.carry_out(work, [evaluation]))
    except StopIteration as end:
        record = end.value

    one, other = (own.clients for own in asked)
    seen = zip(
        tasks.columns["client"].tolist(),
        update.steps_M.tolist(),
        update.loss_M.tolist(),
        update.delta_MP.norm(dim=1).tolist(),
        strict=True,
    )
    table = [
        "{:4} {:7} {:6} {:5.2f} {:6} {:8}".format(*row)
        for row in tasks.columns[COLUMNS].tolist()
    ]
    updates = ["{:6} {:6} {:7.3f} {:8.3f}".format(*row) for row in seen]
    means = [
        f"{cell:4} {own.steps:6} {own.samples:8} {own.loss / own.samples:10.3f}"
        for cell, own in trained.items()
    ]
    parts = [
        Part(
            "1  A replicate asks",
            "simulation/replicate.py",
            f"the policy picks the cohort {one}\nthe algorithm's round yields\n"
            f"  TrainMean(w_P, ids={one})\nthe replicate adds cell, seed, round:\n"
            f"{MARK}  Training(cell=0, clients={one})\n\nanother run of the pack:\n"
            f"  Training(cell=1, clients={other})",
        ),
        Part(
            "2  All trainings become one table",
            "core/work.py",
            "  ".join(COLUMNS) + f"\n{MARK}" + "\n".join(table) + "\n\n"
            "Tasks: a row for each client that trains;\n"
            f"start: one of {len(tasks.vectors)} vectors of {len(tasks.vectors[0])} "
            "parameters;\naveraged: how many updates the mean has",
        ),
        Part(
            "3  A stack of rows is trained",
            "training/trainer.py",
            "all mini-batches are drawn in one call;\nan engine gives each step's gradients\n\n"
            f"client  steps    loss  |delta|\n{MARK}" + "\n".join(updates),
        ),
        Part(
            "4  Updates become means",
            "runtime/exact_mean.py",
            "Reduction: exact sums, cell by cell,\nso that any actor may add a part\n"
            "combine_shares: one Trained a cell\n\ncell  steps  samples  mean loss\n"
            f"{MARK}" + "\n".join(means),
        ),
        Part(
            "5  The algorithm goes on",
            "algorithms/fedavg.py",
            "the replicate counts steps and bytes\n\n"
            f"{MARK}the algorithm is sent MeanUpdate(delta_P)\n  w_P = w_P - lr * delta_P\n"
            "it returns State(w_P)\n\nthe replicate sees whether w_P is finite",
        ),
        Part(
            "6  The round becomes a row",
            "simulation/replicate.py, core/record.py",
            "Evaluation: sums over the test set\nthe Record, later a row of Parquet:\n"
            f"{MARK}  cohorts        {record.cohorts}\n  steps          {record.steps}\n"
            f"  train_loss     {record.train_loss:.3f}\n"
            f"  test_accuracy  {record.test_accuracy:.3f}",
        ),
    ]
    return parts, one[0]


def draw(file: Path) -> None:
    """Draw the picture.

    Args:
        file: Where it is written.
    """
    parts, client = played()
    figure, axes = plt.subplots(figsize=(11.5, 6.6))
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.99)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    for (x, y), part in zip(CORNERS, parts, strict=True):
        style = {"boxstyle": "round,pad=0.004", "fc": "#f4f6f9", "ec": GREY}
        axes.add_patch(FancyBboxPatch((x, y), *SIZE, **style))
        axes.text(x + 0.008, y + 0.395, part.title, weight="bold", size=10)
        axes.text(x + 0.008, y + 0.365, part.where, color=GREY, size=8.5)
        for k, line in enumerate(part.text.split("\n")):
            own = line.startswith(MARK)
            font = {"family": "monospace", "size": 8.3}
            look = {"color": COLOUR, "weight": "bold"} if own else {}
            height = y + 0.315 - 0.034 * k
            axes.text(x + 0.008, height, line.removeprefix(MARK), **font, **look)
    for start, end, text, place in ARROWS:
        arrow = {"arrowstyle": "-|>", "color": COLOUR, "lw": 1.6, "mutation_scale": 14}
        axes.annotate("", end, start, arrowprops=arrow)
        axes.text(*place, text, size=8.5, color=COLOUR)
    axes.text(0.01, 0.015, CAPTION.format(client), size=8.5, color=GREY)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    draw(Path(__file__).with_name("architecture.png"))
