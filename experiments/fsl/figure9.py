"""FSL, figure 9, as a script: how dissimilar clients' and server's gradients are.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 9.

Run it from the repository's root; scale `paper` needs a GPU (`--device cuda`) and EMNIST in
the data folder:

    python -m experiments.fsl.figure9 [--scale SCALE] [--dataset NAME] [--rounds T]
        [--device DEVICE] [--out DIR]

It takes some 57 hours of one core, or, by its operations, 50 minutes of an H200.

FSL is trained with gamma = 1 and eta_l = 0.01 in scenario 1. In rounds 0, 50, ..., 1000
the script computes xi_t^2 = |grad f0 - grad F|^2 (server) and G_t^2 = mean_i |grad f_i
- grad F|^2 (clients) at the current model, for C classes per client and n0 samples at
the server. The text of the paper says three things: a larger C makes the clients' data
considerably more alike; xi^2 is much smaller than G^2 in most cases and on average; and
xi^2 falls as n0 grows. The paper names n0 = 90 and 225 for EMNIST. We took n0 = 200 and
500 for CIFAR-10, and C = 1, 2, 5, from the other figures.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.fsl.setting import scenario1, small, smoke
from experiments.theorems import gradients as diagnostics
from experiments.theorems.output import publish
from raysafl.report.figures.style import LETTERS, colours, new_figure, style_axes
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation

SIZES = {"CIFAR-10": (200, 500), "EMNIST": (90, 225)}
CLASSES = (1, 2, 5)
SCALES = {
    "paper": lambda run: run,
    "small": small,
    "smoke": lambda run: smoke(
        small(run)
    ),  # `small` has fewer samples to take gradients of
}
POINTS = 21  # t = 0, 50, ..., 1000


def follow(run, dataset, device):
    """Yield (t, xi^2, G^2) along the first replicate of a run."""
    work = Worker(run.cells[:1], dataset, run.model, device=device)
    simulation = Simulation(run.replace(replicates=1, eval_every=run.rounds), work)
    due = {round(i * run.rounds / (POINTS - 1)) for i in range(POINTS)}
    while True:
        if simulation.round in due:
            w_P = simulation.replicates[0].state.w_P
            clients_NP = diagnostics.client_gradients(
                work, w_P.expand(run.data.clients, -1)
            )
            server_P = diagnostics.server_gradient(work, w_P)
            yield (
                simulation.round,
                diagnostics.server_gap(server_P, clients_NP),
                float(diagnostics.dissimilarity(clients_NP).mean()),
            )
        if simulation.done:
            return
        simulation.step()


def measure(datasets, shrink, rounds, device):
    """Return a table of xi^2 and G^2 with one row per dataset, C, n0 and t."""
    rows = []
    loaded = {}
    for name in datasets:
        for C in CLASSES:
            for n0 in SIZES[name]:
                run = shrink(scenario1(name, "FSL", C, n0=n0))
                run = run.replace(rounds=rounds or run.rounds)
                key = run.data.source_key
                loaded[key] = loaded.get(key) or run.data.load()
                rows += [
                    (name, C, n0, *row) for row in follow(run, loaded[key], device)
                ]
    return pd.DataFrame(rows, columns=["dataset", "C", "n0", "t", "xi2", "G2"])


def means(frame):
    """Return the means over t as rows of text, of which the first is the head."""
    rows = [["dataset", "C", "n0", "xi^2", "G^2", "xi^2 < G^2 at"]]
    for labels, own in frame.groupby(["dataset", "C", "n0"], sort=False):
        below = f"{(own.xi2 < own.G2).mean():.0%} of t"
        values = [f"{own.xi2.mean():.3g}", f"{own.G2.mean():.3g}", below]
        rows.append([*map(str, labels), *values])
    return rows


def draw(frame):
    """Return a figure with a panel per dataset and C: G^2 and each n0's xi^2 over t."""
    names = frame.dataset.unique()
    figure = new_figure(9, 2.6 * len(names) + 0.6)
    grid = figure.subplots(
        len(names), len(CLASSES), sharex=True, sharey=True, squeeze=False
    )
    paint = colours(3)
    for axes, (name, C) in zip(
        grid.flat, ((n, c) for n in names for c in CLASSES), strict=True
    ):
        own = frame[(frame.dataset == name) & (frame.C == C)]
        for i, (_, rows) in enumerate(own.groupby("n0")):
            axes.plot(
                rows.t,
                rows.xi2,
                color=paint[i],
                label=f"ξ², {('smaller', 'larger')[i]} n0",
            )
            if i == 0:
                axes.plot(
                    rows.t, rows.G2, color=paint[2], linestyle="--", label="G², clients"
                )
        axes.set_title(
            f"{name}, C = {C}, n0 = {own.n0.min()}, {own.n0.max()}", fontsize=LETTERS
        )
        axes.set_yscale("log")
        style_axes(axes)
    for axes in grid[-1]:
        axes.set_xlabel("round t", fontsize=LETTERS)
    figure.supylabel("squared distance to grad F: ξ², G²", fontsize=LETTERS)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=3,
        fontsize=LETTERS,
        frameon=False,
    )
    return figure


def main(arguments=None):
    """Print the table, and write it, the figure and its numbers."""
    parser = argparse.ArgumentParser(description="FSL's figure 9")
    parser.add_argument("--scale", choices=tuple(SCALES), default="paper")
    parser.add_argument("--out", type=Path, default=Path("results/fsl_figure9"))
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--device", default="cpu", help="torch's name of it: cuda")
    parser.add_argument("--dataset", choices=tuple(SIZES), action="append")
    options = parser.parse_args(arguments)
    shrink = SCALES[options.scale]
    datasets = options.dataset or list(SIZES)
    frame = measure(datasets, shrink, options.rounds, options.device)
    assert np.isfinite(frame[["xi2", "G2"]]).all().all()
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.out / "fsl_figure9.csv", index=False)
    title = f"Mean over t of xi^2 and G^2 along FSL (scale: {options.scale})"
    publish(options.out, {title: means(frame)}, draw(frame), "fsl_figure9")


if __name__ == "__main__":
    main()
