"""The command line: one function per command.

A mistake of the user ends in one message with exit code 2, and never in a traceback of
ours. What a command needs is imported inside its function, so that `raysafl --help` is
fast.
"""

import itertools
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

from raysafl.cli.options import SweepOptions, takes_options
from raysafl.cli.start import explain
from raysafl.core.text import count, printable
from raysafl.storage.paths import parse_location, pushed
from raysafl.storage.redaction import redacted
from raysafl.sweep.progress import plain_console, short
from raysafl.version import __version__

# Between two looks of `raysafl status --watch`.
WATCH_SECONDS = 2.0
app = typer.Typer(
    epilog="Exit codes: 0, all is well; 1, `run` ended without some runs (failed, diverged, "
    "missing), results are damaged, or a check failed; 2, a mistake in what was given, or a "
    "file or machine that cannot be used; 3, a mistake in raysafl; 130, stopped by Ctrl-C or "
    "SIGTERM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(
    help="Look at an experiment's data and participation.", no_args_is_help=True
)
app.add_typer(data, name="data")
console = plain_console()
errors = plain_console(stderr=True)

Folders = Annotated[list[str], typer.Argument(help="Folders or URIs of sweeps.")]
SomeFolders = Annotated[
    list[str] | None,
    typer.Argument(
        help="Folders or URIs of sweeps; by default results.", show_default=False
    ),
]
Root = Annotated[str, typer.Argument(help="Folder or URI of a sweep, or of several.")]
Experiment = Annotated[
    Path, typer.Argument(help="An experiment file: a Python file that defines SWEEP.")
]


@app.callback(invoke_without_command=True)
def root_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.")
    ] = False,
) -> None:
    """Run and browse sweeps of federated learning under partial client participation."""
    if version:
        typer.echo(f"raysafl {__version__}")
        raise typer.Exit


@app.command("quickstart")
@takes_options()
def quickstart_command(options: SweepOptions) -> None:
    """Compare FedAvg with SAFARI on bundled digits: 18 runs of 5 seeds, some ten seconds."""
    # Imported here, because it loads torch, which other commands do not need.
    from raysafl.quickstart import SWEEP

    _run_sweep(SWEEP, options)


@app.command(
    "run",
    epilog="Examples: raysafl run mine.py --scale smoke tries everything in two short "
    "rounds; raysafl run mine.py --only s=4 --trials 8 runs a part of the sweep, eight "
    "trials at once.",
)
@takes_options()
def run_command(
    file: Experiment,
    options: SweepOptions,
) -> None:
    """Run the sweep of an experiment file; leave out runs that ended without an error."""
    from raysafl.sweep.experiment_file import load_sweep

    _run_sweep(load_sweep(file), options)


@app.command("report")
def report_command(
    paths: Folders,
) -> None:
    """Make runs.parquet, table.md, report.html and the figures of a sweep from its rows."""
    from raysafl.report.pages.screen import screen
    from raysafl.storage.store import DAMAGED

    stores = [store for path in paths for store in _sweeps(path)]
    files = []
    damaged = 0
    for store in stores:
        files += _report_anew(store)
        runs = store.runs()
        is_damaged = runs["reason"].str.startswith(DAMAGED)
        damaged += runs.loc[is_damaged, "run_id"].nunique()
        damaged += len(store.lines().faults)
        console.print(screen(runs, store.manifest(), console.width))
    _say_written(files)
    _refuse_damaged(damaged, console)


@app.command("results")
def results_command(
    query: Annotated[
        str,
        typer.Argument(
            help="A condition, as \"algorithm == 'SAFARI' and p > 1 order by best desc limit 9\"; "
            "'' for all runs; or a whole SQL query, as 'select p, avg(best) from runs group by p'."
        ),
    ],
    paths: SomeFolders = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Filter and sort stored runs; statistics are means over finished seeds.

    Stopped runs have those of the rounds that they ran. Runs that have not ended
    are listed without statistics, as running or waiting.
    """
    from raysafl.report.query import as_text, results

    if csv and json:
        raise ValueError("give --csv or --json, not both")
    locations = [parse_location(path) for path in paths or ["results"]]
    rows = results(locations, query)
    if json:
        text = rows.to_json(orient="records", indent=1)
    else:
        text = rows.to_csv(index=False) if csv else as_text(rows)
    typer.echo(printable(text.rstrip()))
    # The standard output may be CSV or JSON.
    _refuse_damaged(rows.attrs["damaged"], errors)


@app.command("status")
def status_command(
    paths: SomeFolders = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C."),
    ] = False,
) -> None:
    """Say how far sweeps are, from their folders alone, whether they run, wait or have ended."""
    from raysafl.storage.status import status_of

    for look in itertools.count():
        stores = [store for path in paths or ["results"] for store in _sweeps(path)]
        text = "\n\n".join("\n".join(status_of(store).lines()) for store in stores)
        if look:
            console.clear()
        console.print(text, soft_wrap=True)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


@app.command("verify")
def verify_command(
    paths: Folders,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Forget what is damaged; `raysafl run` computes it again."
        ),
    ] = False,
) -> None:
    """Say what is wrong in a sweep's folder: lost, damaged or exchanged files and rows.

    The exit code is 1 if something is wrong, or with --repair if something is left.
    """
    from raysafl.storage.verify import repair as forget
    from raysafl.storage.verify import verify

    left = 0
    for store in [store for path in paths for store in _folders(path)]:
        findings = verify(store)
        lines = [str(finding) for finding in findings]
        if findings and repair:
            lines += [f"forgot {done.where}" for done in forget(store, findings)]
            # The report may still show what was forgotten.
            shown = map(store.file, ("report.html", "manifest.json"))
            if all(file.is_file() for file in shown):
                _report_anew(store)
            findings = verify(store)
        elif findings:
            lines.append("`raysafl verify --repair` forgets what is damaged")
        for line in lines if findings else [*lines, "clean"]:
            console.print(f"{store.path}: {line}", soft_wrap=True)
        left += len(findings)
    if left:
        raise typer.Exit(1)


@app.command("merge")
def merge_command(
    paths: Annotated[
        list[str], typer.Argument(help="Folders or URIs of one sweep, two or more.")
    ],
    out: Annotated[str, typer.Option(help="Folder or URI of the merged results.")],
) -> None:
    """Put together the results of one sweep that several machines have computed."""
    from raysafl.storage.merge import merge
    from raysafl.storage.store import Store

    stores = [Store(parse_location(path)) for path in paths]
    if len({store.path.resolve() for store in stores}) < max(2, len(stores)):
        raise ValueError("merge takes two folders or more, each of them once")
    into = Store(parse_location(out))
    with ExitStack() as locks:
        for store in stores:
            store.manifest()
            # Somebody else's folder cannot be locked where it may only be read.
            if os.access(store.path, os.W_OK) or store.is_running:
                locks.enter_context(store.lock())
        done = merge(stores, into)
        _report_anew(into)
    console.print(f"{short(into.path)}: {done}", soft_wrap=True)


@app.command("recheck")
@takes_options("executor", "address", "actors", "cpus", "gpus", "trials", "engine")
def recheck_command(
    path: Annotated[str, typer.Argument(help="Folder or URI of a sweep.")],
    options: SweepOptions,
    number: Annotated[
        int, typer.Option("--number", "-n", help="How many runs, chosen at random.")
    ] = 3,
    file: Annotated[
        Path | None,
        typer.Option(
            help="The experiment file, which runs with classes of your own need."
        ),
    ] = None,
) -> None:
    """Compute finished runs again, and compare their rows; the exit code is 1 if some differ."""
    from raysafl.storage.store import Store
    from raysafl.sweep.experiment_file import load_sweep
    from raysafl.sweep.recheck import recheck

    if number < 1:
        raise ValueError(f"-n {number} is no number of runs: give 1 or more")
    if file:
        load_sweep(file)
    compared = list(
        recheck(
            Store(parse_location(path)),
            number,
            hardware=options.hardware(),
            executor=options.executor,
            address=options.address,
            engine=options.engine,
        )
    )
    for name, unlike in compared:
        console.print(f"{name}: {unlike or 'equal, bit by bit'}", soft_wrap=True)
    if any(unlike for _, unlike in compared):
        raise typer.Exit(1)


@app.command("sync")
@takes_options("track", "tracking_uri")
def sync_command(path: Root, options: SweepOptions) -> None:
    """Update MLflow from the stored results."""
    from raysafl.tracking.tracker import sync

    location = parse_location(path)
    synced = sync(location, options.tracking_uri, console.print, options.track)
    is_or_are = "is" if synced == 1 else "are"
    console.print(f"{count(synced, 'run')} {is_or_are} in MLflow")


@app.command("ui")
def ui_command(
    path: Annotated[
        str, typer.Argument(help="The folder of a sweep, or one that holds sweeps.")
    ] = "results",
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; by default for this machine only."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port; if it is taken, a free one is used.")
    ] = 5000,
    browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Show the results in MLflow until Ctrl-C, and print the address of the page."""
    from raysafl.tracking.server import serve

    try:
        serve(parse_location(path), host, port, browser)
    # A server that does not start is reported like a mistake, without a traceback.
    except RuntimeError as error:
        raise ValueError(str(error)) from error


@data.command("show")
@takes_options("scale", "only")
def data_show_command(
    file: Experiment,
    options: SweepOptions,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures; by default data/<sweep>."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Maximum number of rounds that are drawn.", min=1)
    ] = 1000,
) -> None:
    """Show label skew and participation before a run, as a table and figures."""
    from raysafl.cli.data_preview import preview
    from raysafl.sweep.experiment_file import load_sweep

    sweep = load_sweep(file).at(options.scale)
    folder = out or Path("data") / sweep.name
    table, files = preview(sweep, folder, options.labels(), rounds)
    console.print(table)
    _say_written(files)


@app.command("list")
def list_command(
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON, with the fields of every component."),
    ] = False,
) -> None:
    """List what can be combined (algorithms, policies, data, models), and what is measured."""
    from raysafl.cli.catalogue import catalogue, catalogue_table

    if json:
        import json as encoder

        typer.echo(encoder.dumps(catalogue(), indent=1))
    else:
        console.print(catalogue_table())


@app.command("doctor")
def doctor_command(
    address: Annotated[
        str | None,
        typer.Option(
            help="Look at the nodes of the Ray cluster at this address, and not at this "
            "machine: what Ray counts there, what torch sees, and whether they have the "
            "raysafl of this machine. 'auto' is the cluster of this machine."
        ),
    ] = None,
) -> None:
    """Say what works on this machine, and how to fix what does not."""
    from raysafl.cli.doctor import examine, examine_nodes

    if address is not None:
        table, problems = examine_nodes(address)
        console.print(table)
        for problem in problems:
            console.print(f"FAIL  {problem}", soft_wrap=True)
        if problems:
            raise typer.Exit(1)
        return
    checks = examine()
    for check in checks:
        mark = "ok  " if check.passed else "FAIL"
        console.print(f"{mark}  {check.name}: {check.message}", soft_wrap=True)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _report_anew(store: Any) -> list[Any]:
    """Write `runs.parquet` and the report from what a folder holds; return its files."""
    from raysafl.report.write import write_report
    from raysafl.storage.runs_table import write_runs_table

    with pushed(store.path, console.print):
        write_runs_table(store)
        return write_report(store)


def _sweeps(path: str) -> list[Any]:
    """Return the sweeps in a folder, or raise ValueError if there is none."""
    from raysafl.storage.store import sweeps_in

    return sweeps_in(parse_location(path))


def _say_written(files: Iterable[Any]) -> None:
    """Print the files that a command has written, each in a line."""
    lines = ["Written:", *(f"  {short(file)}" for file in files)]
    console.print("\n".join(lines), soft_wrap=True)


def _refuse_damaged(damaged: int, where: Console) -> None:
    """Say how many runs are damaged, and end with the exit code 1 if some are."""
    if damaged:
        where.print(
            f"{count(damaged, 'damaged run')} in no table: `raysafl verify` says which"
        )
        raise typer.Exit(1)


def _folders(path: str) -> list[Any]:
    """Return the sweeps in a folder, or the folder of one that has lost its manifest."""
    from raysafl.storage.store import Store

    root = parse_location(path)
    lost = (root / "ledger.jsonl").is_file() or any(root.glob("rounds/*"))
    return [Store(root)] if lost else _sweeps(path)


def _run_sweep(sweep: Any, options: SweepOptions) -> None:
    """Run a sweep, print its table and where the results are.

    The exit code is 1 if a run failed, diverged or is missing.
    """
    from raysafl.sweep.runner import Runner

    names = {field.name for field in fields(Runner)} & vars(options).keys()
    asked = {name: getattr(options, name) for name in names}
    asked["only"] = options.labels()
    # The manifest names the command, so that the report can say how to run it again.
    asked["command"] = shlex.join(["raysafl", *sys.argv[1:]])
    runner = Runner(
        sweep.at(options.scale),
        hardware=options.hardware(),
        console=console,
        **asked,
    )
    if options.dry_run:
        console.print(str(runner.forecast()), soft_wrap=True)
        return
    outcome = runner.run()
    # `--quiet` hides the progress only, and `Runner` is silent then.
    if options.quiet:
        outcome.print_to(console)
    if not outcome.ok:
        raise typer.Exit(1)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = str(message)
    is_own = Path(filename).is_relative_to(Path(__file__).parents[1])
    if not (is_own and category is UserWarning):
        # It is a library's or the user's own, of which the place says more.
        text = warnings.formatwarning(message, category, filename, lineno, line)
    _say_once(text.rstrip())


@cache
def _say_once(text: str) -> None:
    _show_error(text)


def _show_error(text: str) -> None:
    errors.print(redacted(text), style="red", soft_wrap=True)


def main() -> None:
    """Run a command; turn whatever ends it into one message and an exit code."""
    warnings.showwarning = _show_warning
    try:
        app()
    except BaseException as error:
        sys.exit(explain(error, _show_error))
