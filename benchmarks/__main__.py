"""How fast raysafl is. Each command writes one JSON file while it measures, and prints its tables.

README.md in benchmarks/ says what each measures.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.found import Found, Piece, origin
from benchmarks.processes import chosen, progress

Given = argparse.Namespace


class Measured(NamedTuple):
    """What a command is about to measure.

    Attributes:
        found: takes the pieces.
        pieces: are measured as they are taken.
        table: writes what was found as Markdown.
    """

    found: Found
    pieces: Iterable[Piece]
    table: Callable[[Found], str]


def cpu(given: Given) -> Measured:
    """Measure raysafl against a plain PyTorch loop, and what rounds and trials cost."""
    from benchmarks import tables
    from benchmarks.cpu import DRY, ON_CPU, measures

    plan = DRY if given.dry else ON_CPU
    pieces = measures(plan, given.only, given.repeats, given.full)
    return Measured(Found(origin(repeats=given.repeats)), pieces, tables.cpu)


def gpu(given: Given) -> Measured:
    """Measure whether a GPU computes right and fast (docs/gpu_benchmark.md); keep other parts."""
    from benchmarks import tables
    from benchmarks.device import device_of, name_of
    from benchmarks.gpu import Setting, measures
    from benchmarks.gpu_plan import DRY, ON_GPU

    device = device_of(given.dry)
    name = name_of(device)
    settings = {"device": name, "seconds_allowed": given.seconds, "dry": given.dry}
    found = Found(origin(repeats=given.repeats, **settings))
    found.go_on(given.out, ("device", "versions", "dry"))
    plan = DRY if given.dry else ON_GPU
    setting = Setting(device, plan, given.repeats, found.measures, name)
    return Measured(found, measures(setting, given.only, given.seconds), tables.gpu)


def scaling(given: Given) -> Measured:
    """Measure how time and memory grow along nine axes; other axes of the file stay."""
    from benchmarks.scaling import measures
    from benchmarks.scaling_report import scaling as table

    found = Found(origin(repeats=given.repeats)).go_on(given.out)
    pieces = measures(given.only, given.repeats, given.seconds, given.dry)
    return Measured(found, pieces, table)


def engines(given: Given) -> Measured:
    """Measure the engines on two convolutional networks, beside their floors."""
    import torch

    from benchmarks import tables
    from benchmarks.device import device_of, name_of
    from benchmarks.engines import DRY, MODELS, ON_GPU, Grid, measures

    names = chosen(given.only, list(MODELS), given.repeats)
    device = device_of(given.dry) if given.device == "cuda" else "cpu"
    torch.set_num_threads(given.threads)
    grid = replace(
        DRY if given.dry else ON_GPU if device == "cuda" else Grid(),
        repeats=given.repeats,
        limit=given.limit,
        compiled=given.compile,
    )
    found = Found(origin(device=name_of(device), threads=given.threads))
    return Measured(found, measures(device, names, grid), tables.engines)


def rivals(given: Given) -> Measured:
    """Measure other frameworks; one whose Python is not given is left out."""
    from benchmarks import tables
    from benchmarks.rivals import DRY, SCRIPTS, measures, versions
    from benchmarks.workloads import STANDARD

    known = DRY if given.dry else STANDARD
    names = chosen(given.only, list(known), given.repeats)
    paths = {name: getattr(given, name) for name in SCRIPTS}
    pythons = {name: path for name, path in paths.items() if path}
    found = Found(origin(repeats=given.repeats, rivals=versions(pythons)))
    pieces = measures({name: known[name] for name in names}, pythons, given.repeats)
    return Measured(found, pieces, tables.rivals)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(begin: Callable[[Given], Measured], repeats: int) -> Callable[..., Any]:
        made = commands.add_parser(
            begin.__name__, help=begin.__doc__, description=begin.__doc__
        )
        made.set_defaults(begin=begin)
        add = made.add_argument
        add("--only", default="", help="what to measure, with commas [everything]")
        add(
            "--repeats",
            type=int,
            default=repeats,
            help="turns of a median [%(default)s]",
        )
        add("--dry", action="store_true", help="only try it, with small sizes")
        add("--out", type=Path, help="the JSON file [COMMAND.json in this folder]")
        return add

    add = command(cpu, 5)
    add("--full", action="store_true", help="take the slow S1 and trials as well")
    add = command(gpu, 5)
    add("--seconds", type=float, default=520, help="what all of it may take [520]")
    told = "only write an archive for a machine without network, .tar.gz"
    add("--bundle", type=Path, metavar="FILE", help=told)
    add("--python", default="3.12", help="of the machine of the bundle [%(default)s]")
    add = command(scaling, 3)
    add("--seconds", type=float, default=2.0, help="of rounds in a process [2]")
    add = command(engines, 3)
    add("--device", default="cpu", choices=["cpu", "cuda"])
    add("--limit", type=float, default=20, help="time a longer case once [20 seconds]")
    add("--threads", type=int, default=1, help="of the CPU [1]")
    add("--compile", action="store_true", help="try torch.compile as well")
    add = command(rivals, 3)
    for name in ("pfl", "flower", "fedjax"):
        add(f"--{name}", metavar="PYTHON", help="the Python that has this framework")
    told = "write the pages from the JSON files in benchmarks/"
    render = commands.add_parser("render", help=told, description=told)
    render.add_argument("--check", action="store_true", help="fail if a page is old")
    return parser


def main(line: Sequence[str] | None = None) -> int:
    """Carry out a command and return its exit code: 2 for a mistake in what was given."""
    given = arguments().parse_args(line)
    try:
        if "check" in given:
            from benchmarks.pages import render

            render(given.check)
        elif vars(given).get("bundle"):
            from benchmarks.bundle import bundle

            print(bundle(given.bundle, given.python))
        else:
            measure(given)
    except ValueError as error:
        progress(f"Error: {error}")
        return 2
    return 0


def measure(given: Given) -> None:
    """Measure, write the JSON file after each piece, and print the tables."""
    name = given.begin.__name__
    if name == "engines":
        name += f"-{given.device}"
    given.out = given.out or Path(f"{name}-dry.json" if given.dry else f"{name}.json")
    given.only = [name.strip() for name in given.only.split(",") if name.strip()]
    found, pieces, table = given.begin(given)
    found.origin["dry"] = given.dry
    print(table(found.collect(pieces, given.out)))
    progress(f"Written: {given.out}")


if __name__ == "__main__":
    sys.exit(main())
