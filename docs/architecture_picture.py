"""Draw docs/architecture.png: the path of one client's update, from request to row.

The numbers are those of a round of two small runs that are alike, which the script plays:

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
from raysafl.simulation.lifting import ClientTable
from raysafl.simulation.replicates import Replicates
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
    ((0.695, 0.27), (0.645, 0.27), "answer", (0.65, 0.28)),
    ((0.35, 0.27), (0.3, 0.27), "w_P", (0.315, 0.28)),
]


def played() -> tuple[list[Part], int]:
    """Play a round of two runs; return the parts, and the client that is followed."""
    base = BASE.replace(replicates=1, participation=Uniform(m=2))
    runs = [base.replace(seed=seed) for seed in (0, 1)]
    cells = [cell for run in runs for cell in run.cells]
    work = Worker(cells, base.data.load(), base.model)
    members = [Simulation(run, work, k).replicates[0] for k, run in enumerate(runs)]
    table = ClientTable(len(work.init(cell=0)))
    group = Replicates(members, table, is_lifted=True)
    group.go_on(None)
    asked: list[Any] = list(group.requests)
    tasks = Tasks.of(asked)
    ((_, update),) = work.trainer.train_stacks(tasks)
    share = work.train_share(tasks)
    (trained,) = combine_shares(asked, tasks, [slice(None)], [share])
    group.go_on([trained])
    group.go_on(work.sums(list(group.requests)))
    record = group.end_round()[0]

    one, other = asked[0].clients_RM.tolist()
    seen = zip(
        tasks.columns["client"].tolist(),
        update.steps_M.tolist(),
        update.loss_M.tolist(),
        update.delta_MP.norm(dim=1).tolist(),
        strict=True,
    )
    rows = [
        "{:4} {:7} {:6} {:5.2f} {:6} {:8}".format(*row)
        for row in tasks.columns[COLUMNS].tolist()
    ]
    updates = ["{:6} {:6} {:7.3f} {:8.3f}".format(*row) for row in seen]
    means = [
        f"{cell:4} {steps_M.sum():6} {samples_M.sum():8} "
        f"{(samples_M * loss_M).sum() / samples_M.sum():10.3f}"
        for cell, (steps_M, samples_M, loss_M) in enumerate(
            zip(trained.steps_M, trained.samples_M, trained.loss_M, strict=True)
        )
    ]
    parts = [
        Part(
            "1  A group of replicates asks",
            "simulation/replicates.py",
            "two runs that are alike: one group\nthe policy picks both cohorts\n"
            "the algorithm's round yields, once,\n  TrainMean(w_P, ids)\n"
            "the group adds cells, seeds, round:\n  Training(cells_R=[0, 1],\n"
            f"{MARK}    clients_RM=[{one},\n                {other}])",
        ),
        Part(
            "2  All trainings become one table",
            "core/work.py",
            "  ".join(COLUMNS) + f"\n{MARK}" + "\n".join(rows) + "\n\n"
            "Tasks: a row for each client that trains;\n"
            f"start: a row of a matrix {list(tasks.starts[0].shape)};\n"
            "averaged: how many updates the mean has",
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
            "combine_shares: one answer a request\n\ncell  steps  samples  mean loss\n"
            f"{MARK}" + "\n".join(means),
        ),
        Part(
            "5  The algorithm goes on",
            "algorithms/fedavg.py",
            "the group counts steps and bytes\n\n"
            f"{MARK}it is sent MeanUpdate(delta_P), for both\n  w_P = w_P - lr * delta_P\n"
            "it returns State(w_P)\n\nthe group sees whose w_P is finite",
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
