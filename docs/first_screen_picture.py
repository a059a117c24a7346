"""Draw docs/first_screen.png: FedAvg and SAFARI with four clients that are never available.

    raysafl quickstart && python docs/first_screen_picture.py

It shows one setting of the quickstart, s = 4 and p = 1, from the rows in results/quickstart.
"""

from pathlib import Path

import matplotlib.pyplot as plt

import raysafl as fl

FOLDER = Path(__file__).parent
METHODS = {
    "FedAvg": ("#1f77b4", "-", "FedAvg: the server only averages"),
    "SAFARI": (
        "#c44e00",
        "--",
        "SAFARI: in a fifth of the rounds the\nserver trains on 100 samples of its own",
    ),
}


def main() -> None:
    rows = fl.load("results/quickstart").rounds
    rows = rows[(rows["label.s"] == 4) & (rows["label.p"] == 1)]
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for name, (color, style, said) in METHODS.items():
        of_method = rows[rows["label.algorithm"] == name]
        percent = 100 * of_method.groupby("round").test_accuracy.agg(["mean", "std"])
        mean, std = percent["mean"], percent["std"]
        axes.plot(mean, color=color, linestyle=style, linewidth=2)
        axes.fill_between(mean.index, mean - std, mean + std, color=color, alpha=0.15)
        axes.annotate(
            said, (mean.index[-1] + 1, mean.iloc[-1]), color=color, va="center"
        )
    axes.set(xlabel="round", ylabel="test accuracy (%)", xlim=(0, 60), ylim=(0, 100))
    axes.set_title(
        "4 of 10 clients are never available; each client holds one class of digits",
        loc="left",
        fontsize="medium",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FOLDER / "first_screen.png", dpi=110)


if __name__ == "__main__":
    main()
