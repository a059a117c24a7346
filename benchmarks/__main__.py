"""How fast raysafl is. Each command writes one JSON file and prints its tables.

`render` writes the pages from the files that lie in benchmarks/. README.md there says
what each command measures.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.found import Found, Piece, origin
from benchmarks.processes import chosen, progress

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Only = Annotated[
    str, typer.Option(help="What to measure, with commas; without it, everything.")
]
Repeats = Annotated[int, typer.Option(help="Turns, of which medians are taken.")]
Dry = Annotated[
    bool,
    typer.Option(
        "--dry", help="Only try the command, with sizes that measure nothing."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The JSON file, written while measuring [default: named as the command, "
        "with -dry behind it if it is dry, in the current folder]."
    ),
]


@app.command()
def cpu(
    only: Only = "",
    repeats: Repeats = 5,
    full: Annotated[
        bool, typer.Option("--full", help="Take the slow S1 and trials as well.")
    ] = False,
    dry: Dry = False,
    out: Out = None,
) -> None:
    """Measure raysafl against a plain PyTorch loop, and what rounds and trials cost.

    W1,W2,W3,W4,actors,packs,replicates,empty,start take 40 minutes; S1 (SAFARI's table 8)
    and trials (10,000 trivial runs) are measured only with --full or by name.
    """
    from benchmarks.cpu import DRY, ON_CPU, measures
    from benchmarks.tables import cpu as table

    pieces = measures(DRY if dry else ON_CPU, _names(only), repeats, full)
    finish("cpu", Found(origin(repeats=repeats, dry=dry)), pieces, table, out)


@app.command()
def gpu(
    only: Only = "", repeats: Repeats = 5, dry: Dry = False, out: Out = None
) -> None:
    """Measure a GPU within nine minutes: whether it computes right and fast.

    See docs/gpu.md. Parts: agreement,determinism,W1,W2,W3,W4,packs-W4,packs-W2,memory,S1,
    processes. With --dry the CPU stands for the GPU.
    """
    from benchmarks.device import device_of
    from benchmarks.gpu import SECONDS, Setting, measures
    from benchmarks.gpu_plan import DRY, ON_GPU
    from benchmarks.tables import gpu as table

    device = device_of(dry)
    settings = {"device": device, "dry": dry, "seconds_allowed": SECONDS}
    found = Found(origin(repeats=repeats, **settings))
    setting = Setting(device, DRY if dry else ON_GPU, repeats, found.measures)
    finish("gpu", found, measures(setting, _names(only)), table, out)


@app.command()
def scaling(
    only: Only = "",
    repeats: Repeats = 3,
    seconds: Annotated[float, typer.Option(help="Of rounds in each process.")] = 2.0,
    dry: Dry = False,
    out: Out = None,
) -> None:
    """Measure how time and memory grow along nine axes, in 40 minutes.

    clients,population,model,replicates,trials,actors,packs,at-once,reports: what the file
    holds of other axes stays in it.
    """
    from benchmarks.scaling import measures
    from benchmarks.scaling_report import scaling as table

    found = Found(origin(repeats=repeats, dry=dry))
    if (old := Found.read(_file("scaling", out, dry))) is not None:
        found.measures = old.measures
    finish("scaling", found, measures(_names(only), repeats, seconds, dry), table, out)


@app.command()
def engines(
    only: Only = "",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    limit: Annotated[
        float, typer.Option(help="A case that takes more seconds is timed once.")
    ] = 20.0,
    threads: Annotated[int, typer.Option(help="Of the CPU.")] = 1,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Try torch.compile as well.")
    ] = False,
    dry: Dry = False,
    out: Out = None,
) -> None:
    """Measure the engines on two convolutional networks: W2,FslCifarNet."""
    import torch

    from benchmarks.device import device_of
    from benchmarks.engines import DRY, MODELS, ON_GPU, Grid, measures
    from benchmarks.tables import engines as table

    chosen([device], ["cpu", "cuda"])
    names = chosen(_names(only), list(MODELS))
    told = device
    if device == "cuda" and device_of(dry) == "cuda":
        told = torch.cuda.get_device_name()
    torch.set_num_threads(threads)
    grid = DRY if dry else ON_GPU if device == "cuda" else Grid()
    found = Found(origin(device=told, threads=threads, dry=dry))
    pieces = measures("cpu" if dry else device, names, grid, limit, compiled)
    finish(f"engines-{device}", found, pieces, table, out)


@app.command()
def rivals(
    only: Only = "",
    repeats: Repeats = 3,
    pfl: Annotated[str, typer.Option(help="The Python that has pfl.")] = "",
    flower: Annotated[str, typer.Option(help="The Python that has flwr.")] = "",
    fedjax: Annotated[str, typer.Option(help="The Python that has fedjax.")] = "",
    dry: Dry = False,
    out: Out = None,
) -> None:
    """Measure other frameworks on W1,W2,W3,W4; those without a Python are left out."""
    from benchmarks.rivals import measures, versions
    from benchmarks.tables import rivals as table
    from benchmarks.workloads import STANDARD, TINY, Workload

    even = TINY.replace({"data.clients": 3, "participation.m": 2})
    known = {"W1": Workload(even, target=1.0)} if dry else STANDARD
    workloads = {
        name: known[name] for name in chosen(_names(only), list(known), repeats)
    }
    given = {"pfl": pfl, "flower": flower, "fedjax": fedjax}
    pythons = {name: python for name, python in given.items() if python}
    found = Found(origin(repeats=repeats, rivals=versions(pythons), dry=dry))
    finish("rivals", found, measures(workloads, pythons, repeats), table, out)


@app.command()
def render(
    check: Annotated[
        bool, typer.Option("--check", help="Fail if a page is not up to date.")
    ] = False,
) -> None:
    """Write README.md, scaling.md and docs/scale.md from the JSON files in benchmarks/."""
    from benchmarks.pages import render

    render(check)


def _names(only: str) -> list[str]:
    return [name.strip() for name in only.split(",") if name.strip()]


def _file(name: str, out: Path | None, dry: bool) -> Path:
    return out or Path(f"{name}-dry.json" if dry else f"{name}.json")


def finish(
    name: str,
    found: Found,
    pieces: Iterable[Piece],
    table: Callable[[Found], str],
    out: Path | None,
) -> None:
    """Measure, write the JSON file after each piece, and print the tables.

    Args:
        name: the name of the file, if no other one is given.
        found: takes the pieces.
        pieces: what is measured.
        table: writes what was found as Markdown.
        out: the file.
    """
    dry: Any = found.origin["dry"]
    file = _file(name, out, dry)
    found.collect(pieces, file)
    print(table(found))
    progress(f"Written: {file}")


def main() -> None:
    """Carry out a command; a mistake in what was given ends it with exit code 2."""
    try:
        app()
    except ValueError as error:
        progress(f"Error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
