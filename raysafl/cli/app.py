"""The command line. Errors of the user's are one message, never a traceback of ours."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from raysafl.core.component import Component
from raysafl.storage.paths import Location, parse_location
from raysafl.storage.store import SweepBusyError, find_sweeps

app = typer.Typer(
    help="Sweeps of federated learning with server data, when clients do not come.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Look at an experiment's data and participation.", no_args_is_help=True)
app.add_typer(data, name="data")
console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
if not console.is_terminal:  # a pipe or a file: rich would assume 80 columns
    console.width = 120

Out = Annotated[
    str | None, typer.Option(help="Folder or URI (s3://...) of the results [results/<sweep>]")
]
Root = Annotated[str, typer.Argument(help="A sweep's folder or URI, or one that holds sweeps")]
Actors = Annotated[int, typer.Option(help="Client actors per trial")]
Cpus = Annotated[float, typer.Option(help="CPUs per client actor")]
Gpus = Annotated[float, typer.Option(help="GPU share per client actor: 1, 0.5, 0.25, ...")]
Trials = Annotated[int | None, typer.Option(help="At most so many trials at once")]
Autoscale = Annotated[
    bool, typer.Option("--autoscale", help="The cluster adds nodes: do not check what it has")
]
Address = Annotated[str | None, typer.Option(help="A Ray cluster; 'auto' for the one here")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress")]
Resume = Annotated[bool, typer.Option(help="Go on where it ended, or run everything anew")]


@app.command()
def quickstart(
    out: Out = None,
    actors: Actors = 1,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
    trials: Trials = None,
    address: Address = None,
    quiet: Quiet = False,
    resume: Resume = True,
) -> None:
    """FedAvg against SAFARI on embedded digits: 18 runs, 5 seeds each, about a minute."""
    from raysafl.quickstart import SWEEP

    hardware = _hardware(actors, cpus, gpus, trials)
    _run(SWEEP, out=out, hardware=hardware, address=address, quiet=quiet, resume=resume)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="An experiment file, which defines SWEEP")],
    scale: Annotated[str, typer.Option(help="paper, smoke, or one the file defines")] = "paper",
    out: Out = None,
    only: Annotated[
        list[str] | None, typer.Option(help="LABEL=VALUE: only these runs (repeatable)")
    ] = None,
    resume: Resume = True,
    address: Address = None,
    actors: Actors = 1,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
    trials: Trials = None,
    autoscale: Autoscale = False,
    engine: Annotated[str, typer.Option(help="auto, loop, vmap, linear, fused or graph")] = "auto",
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow server or store")] = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment file's sweep; what is finished is not run again."""
    from raysafl.sweep.experiment_file import load_sweep

    labels = dict(_pair(text) for text in only or [])
    _run(
        load_sweep(file).at(scale),
        out=out,
        only=labels,
        resume=resume,
        address=address,
        hardware=_hardware(actors, cpus, gpus, trials, autoscale),
        engine=engine,
        tracking_uri=tracking_uri,
        quiet=quiet,
    )


@app.command()
def advise(
    file: Annotated[Path, typer.Argument(help="An experiment file, which defines SWEEP")],
    only: Annotated[
        list[str] | None, typer.Option(help="LABEL=VALUE: the first of these runs (repeatable)")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to simulate, in this process")] = 20,
) -> None:
    """Estimate a run's gradients over a few rounds, and what the papers' theorems say of q."""
    from raysafl.sweep.experiment_file import load_sweep
    from raysafl.theory.advice import advise as estimate
    from raysafl.theory.advice_table import show

    label, chosen = load_sweep(file).first(dict(_pair(text) for text in only or []))
    console.print(show(estimate(chosen, rounds), label))


@app.command()
def report(
    paths: Annotated[
        list[str], typer.Argument(help="Folders or URIs of sweeps; two or more: compared")
    ],
    out: Annotated[Path, typer.Option(help="Folder of a comparison")] = Path("."),
) -> None:
    """Make runs.parquet, table.md, report.html and the figures of a sweep anew from its Parquet."""
    from raysafl.report.pages.comparison import write_comparison
    from raysafl.report.pages.screen import screen
    from raysafl.report.write import write_report
    from raysafl.storage.runs_table import write_runs_table

    stores = [store for path in paths for store in _sweeps(path)]
    files = []
    for store in stores:
        runs = write_runs_table(store)
        files += write_report(store)
        console.print(screen(runs, store.manifest(), console.width))
    if len(paths) > 1:
        files += write_comparison(stores, out)
    console.print(f"Written: {', '.join(_short(file) for file in files)}", soft_wrap=True)


@app.command()
def results(
    query: Annotated[str, typer.Argument(help="\"algorithm == 'Safari' and q > 0.5\"; '' for all")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Folders or URIs of sweeps [results]", show_default=False),
    ] = None,
    sort: Annotated[str, typer.Option(help="A column; the largest first")] = "",
    ascending: Annotated[bool, typer.Option("--ascending", help="The smallest first")] = False,
    top: Annotated[int | None, typer.Option(help="At most so many", min=1)] = None,
    columns: Annotated[str, typer.Option(help="Those to show, with commas between")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="As CSV")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON")] = False,
) -> None:
    """Filter and sort runs, of one sweep or many: means over their finished replicates."""
    from raysafl.report.query import as_table
    from raysafl.report.query import results as ask

    wanted = [name.strip() for name in columns.split(",") if name.strip()]
    found = ask(
        [parse_location(path) for path in paths or ["results"]], query, sort, ascending, top, wanted
    )
    if csv or json:
        text = found.to_csv(index=False) if csv else found.to_json(orient="records", indent=1)
        typer.echo(text.rstrip())
    else:
        console.print(as_table(found), soft_wrap=True)


@app.command()
def compact(
    paths: Annotated[list[str], typer.Argument(help="Folders or URIs of sweeps, or of several")],
) -> None:
    """Put the files of a sweep's ended runs into two files. All other commands read both forms."""
    from raysafl.storage.compaction import compact as compact_store

    for store in [store for path in paths for store in _sweeps(path)]:
        console.print(f"{_short(store.path)}: {compact_store(store)}", soft_wrap=True)


@app.command()
def sync(
    path: Root,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow server or store")] = None,
) -> None:
    """Bring MLflow to what the Parquet holds."""
    from raysafl.report.figures.curves import curve_of_run
    from raysafl.tracking import sync as bring

    count = bring(parse_location(path), tracking_uri, console.print, curve=curve_of_run)
    console.print(f"{count} runs are in MLflow")


@app.command()
def ui(
    path: Annotated[str, typer.Argument(help="The folder that holds the sweeps")] = "results",
    host: Annotated[str, typer.Option(help="Loopback unless told otherwise")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The next free one if taken")] = 5000,
) -> None:
    """Browse the results in MLflow."""
    from raysafl.tracking.server import serve

    try:
        serve(parse_location(path), host, port)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


@data.command(name="show")
def data_show(
    file: Annotated[Path, typer.Argument(help="An experiment file, which defines SWEEP")],
    scale: Annotated[str, typer.Option(help="paper, smoke, or one the file defines")] = "paper",
    label: Annotated[
        list[str] | None, typer.Option(help="LABEL=VALUE: only these runs (repeatable)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures [data/<sweep>]")] = None,
    rounds: Annotated[int, typer.Option(help="At most so many rounds drawn", min=1)] = 1000,
) -> None:
    """Who holds which labels, and who comes when: a table and PNGs, before anything runs."""
    from raysafl.cli.data_preview import show
    from raysafl.sweep.experiment_file import load_sweep

    sweep = load_sweep(file).at(scale)
    labels = dict(_pair(text, "--label") for text in label or [])
    table, files = show(sweep, out or Path("data") / sweep.name, labels, rounds)
    console.print(table)
    console.print(f"Written: {', '.join(_short(path) for path in files)}", soft_wrap=True)


@app.command(name="list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="As JSON")] = False,
) -> None:
    """What can be combined (algorithms, participation, partitions, data, models); metrics."""
    from raysafl.cli.catalogue import catalogue, table

    if json:
        import json as encoder

        typer.echo(encoder.dumps(catalogue(), indent=1))
    else:
        console.print(table())


@app.command()
def bench(
    json: Annotated[bool, typer.Option("--json", help="One JSON object")] = False,
    only: Annotated[
        str, typer.Option(help="With commas: W1,W2,W3,W4,actors,replicates,empty,S1,trials")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Medians of so many")] = 5,
    full: Annotated[bool, typer.Option("--full", help="The slow parts too: S1, trials")] = False,
) -> None:
    """Measure raysafl against a plain PyTorch loop, and what its rounds and trials cost.

    Half an hour; S1 (SAFARI's table 8) and trials (1,000 trivial ones) with --full or by name.
    """
    from raysafl.bench.show import report

    report(console, json, [name.strip() for name in only.split(",") if name.strip()], repeats, full)


@app.command()
def doctor(
    root: Annotated[str, typer.Option(help="Folder or URI of the results")] = "results",
) -> None:
    """What works on this machine, and how to mend what does not."""
    from raysafl.cli.doctor import examine

    found = examine(parse_location(root))
    for name, good, said in found:
        console.print(f"{'ok  ' if good else 'FAIL'}  {name}: {said}", markup=False, soft_wrap=True)
    if not all(good for _, good, _ in found):
        raise typer.Exit(1)


def _pair(text: str, option: str = "--only") -> tuple[str, str]:
    label, found, value = text.partition("=")
    if not found:
        raise ValueError(f"{option} takes LABEL=VALUE, not '{text}'")
    return label, value


def _hardware(
    actors: int, cpus: float, gpus: float, trials: int | None, autoscale: bool = False
) -> Component:
    from raysafl.runtime import Hardware

    return Hardware(actors=actors, cpus=cpus, gpus=gpus, trials=trials, autoscale=autoscale)


def _sweeps(path: str) -> list[Any]:
    stores = find_sweeps(parse_location(path))
    if not stores:
        raise ValueError(f"{path} holds no sweep: no manifest.json in it or one level below")
    return stores


def _run(sweep: Any, **options: Any) -> None:
    """Run a sweep, show its table and where everything is; exit code 1 if any run is bad."""
    from raysafl.report.pages.screen import screen
    from raysafl.sweep.runner import Runner

    command = " ".join(["raysafl", *sys.argv[1:]])
    outcome = Runner(sweep, console=console, command=command, **options).run()
    if not outcome.runs.empty:
        console.print(screen(outcome.runs, outcome.manifest, console.width))
    path = _short(outcome.store.path)
    for _, row in outcome.bad.iterrows():
        console.print(
            f"{row['run_id']} replicate {row['replicate']}: {row['status']}, {row['reason']}",
            style="red",
            markup=False,
            soft_wrap=True,
        )
    if outcome.missing:
        console.print(f"{outcome.missing} runs are not finished: the same command goes on")
    told = f"{outcome.skipped} runs were finished before; " if outcome.skipped else ""
    console.print(f"{told}{outcome.seconds:.0f} s. Results, table and curves: {path}")
    console.print(f"Browse them: raysafl ui {_short(outcome.store.path.parent)}")
    if not outcome.ok:
        raise typer.Exit(1)


def _short(path: Location) -> str:
    """A path as the user would type it from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def main() -> None:
    """Entry point: turns the user's errors into one message and exit code 2."""
    try:
        app()
    except (ValueError, SweepBusyError) as error:
        errors.print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
