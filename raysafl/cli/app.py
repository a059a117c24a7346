"""The command line: one function per command.

A mistake of the user ends in one message with exit code 2, and never in a traceback of
ours. What a command needs is imported inside its function, so that `raysafl --help` is
fast.
"""

import logging
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperOption

from raysafl.cli.endings import explain
from raysafl.core.text import count, nearest, printable
from raysafl.storage.paths import parse_location
from raysafl.storage.redaction import redacted
from raysafl.sweep.choices import ExecutorName, Stale
from raysafl.sweep.progress import plain_console, short
from raysafl.tracking.choice import Tracking
from raysafl.version import __version__

# Between two looks of `raysafl status --watch`.
WATCH_SECONDS = 2.0
app = typer.Typer(
    epilog="Exit codes: 0, all is well; 1, `run` ended without some runs (failed, diverged, "
    "missing), results are damaged, a check failed, or output was lost; 2, a mistake in what "
    "was given, or a file or machine that cannot be used; 3, a mistake in raysafl; 129, 130, "
    "143, stopped by SIGHUP, Ctrl-C, SIGTERM.",
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

# The options of a sweep, as its help groups them.
GROUPS = {
    "Which runs": "scale only resume stale",
    "Before and during the sweep": "dry_run try_first quiet",
    "Where, and how many at once": "executor address actors cpus gpus trials pack autoscale "
    "engine",
    "What is kept": "out keep_states track tracking_uri",
}
Out = Annotated[
    str | None,
    typer.Option(
        help="Folder or URI (s3://...) of the results; by default results/<sweep>, or "
        "results/<sweep>-<scale> if the scale is not paper."
    ),
]
Folders = Annotated[list[str], typer.Argument(help="Folders or URIs of sweeps.")]
SomeFolders = Annotated[
    list[str] | None,
    typer.Argument(
        help="Folders or URIs of sweeps; by default results.", show_default=False
    ),
]
Root = Annotated[str, typer.Argument(help="Folder or URI of a sweep, or of several.")]
NumActors = Annotated[int, typer.Option(help="Number of client actors of each trial.")]
Cpus = Annotated[float, typer.Option(help="Number of CPUs of each client actor.")]
Gpus = Annotated[
    str,
    typer.Option(
        help="GPU of each client actor: 0, 1, 0.5, 0.25, ...; auto uses all GPUs."
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of trials at the same time; by default as many as fit."
    ),
]
PackSize = Annotated[
    str,
    typer.Option(
        help="Maximum number of runs that are carried out together; auto chooses by work "
        "and memory, 256 at most."
    ),
]
Autoscale = Annotated[
    bool,
    typer.Option(
        "--autoscale",
        help="Do not check that a trial fits the present nodes: the cluster adds nodes "
        "on demand.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Address of a Ray cluster; 'auto' for the one on this machine."),
]
ExecutorOption = Annotated[
    ExecutorName,
    typer.Option(
        "--executor",
        help="Who carries out the runs: this process (here), trials on Ray (ray), or "
        "Ray only if the work takes longer than Ray takes to start, or GPUs, several "
        "actors or trials, a scheduler or a cluster are asked for (auto).",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Resume = Annotated[
    bool,
    typer.Option(
        help="Go on where an earlier attempt ended, or with --no-resume run all anew."
    ),
]
StaleCode = Annotated[
    Stale,
    typer.Option(
        help="What becomes of runs that were computed before you edited the code of "
        "their classes: all are run again (rerun); those that have ended keep their "
        "results, and the others begin anew (keep); or the command ends with an error "
        "(fail)."
    ),
]
TryFirst = Annotated[
    bool,
    typer.Option(
        "--try/--no-try",
        help="Try a cheap round of your own classes before anything is run, or do not.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what would be run, in what packs, for how long, and what would be reused. "
        "Some rounds are timed for this, with your own classes; nothing is written.",
    ),
]
KeepStates = Annotated[
    bool,
    typer.Option(
        "--keep-states",
        help="Keep the state in which each run ends, so that it can go on when you ask "
        "for more rounds.",
    ),
]
Experiment = Annotated[
    Path, typer.Argument(help="An experiment file: a Python file that defines SWEEP.")
]
Engine = Annotated[
    str,
    typer.Option(
        help="How gradients are computed: auto, loop, vmap, linear, fused or graph."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="AXIS=LABEL: only the runs with this label on this axis, or with one of A,B,...; "
        "may be repeated for other axes."
    ),
]
Scale = Annotated[
    str,
    typer.Option(help="Size of the runs: paper, smoke, or one that the file defines."),
]
TrackingUri = Annotated[str | None, typer.Option(help="MLflow's server or database.")]
Track = Annotated[
    Tracking,
    typer.Option(
        help="How much MLflow gets: nothing (none); parameters and final statistics of "
        "each run (summary); also curves of at most 100 points a metric (curves); or "
        "curves if the sweep has at most 200 runs, otherwise summaries (auto)."
    ),
]


class SweepCommand(TyperCommand):
    """A command that runs a sweep: its help shows its many options in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say where the number of seeds stands, which is no option."""
        if any(arg.partition("=")[0] in ("--seeds", "--replicates") for arg in args):
            raise ValueError(
                "the experiment file says how many seeds each run has, and not an option: "
                "write fl.grid(..., seeds=5) or Run(replicates=5)"
            )
        return super().parse_args(ctx, args)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for group, names in GROUPS.items():
            for own in self.params:
                if isinstance(own, TyperOption) and own.name in names.split():
                    own.rich_help_panel = group


@app.callback(invoke_without_command=True)
def root_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.")
    ] = False,
) -> None:
    """Run and browse sweeps of federated learning in which some clients do not take part."""
    if version:
        typer.echo(f"raysafl {__version__}")
        raise typer.Exit


@app.command("quickstart", cls=SweepCommand)
def quickstart_command(
    out: Out = None,
    actors: NumActors = 1,
    cpus: Cpus = 1.0,
    gpus: Gpus = "auto",
    trials: Trials = None,
    address: Address = None,
    executor: ExecutorOption = ExecutorName.AUTO,
    quiet: Quiet = False,
    resume: Resume = True,
) -> None:
    """Compare FedAvg with SAFARI on embedded digits: 18 runs of 5 seeds, some ten seconds."""
    options = locals()
    # Imported here, because it loads torch, which other commands do not need.
    from raysafl.quickstart import SWEEP

    _run_sweep(SWEEP, options)


@app.command(
    "run",
    cls=SweepCommand,
    epilog="Examples: raysafl run mine.py --scale smoke tries everything in two short "
    "rounds; raysafl run mine.py --only s=4 --trials 8 runs a part of the sweep, eight "
    "trials at once.",
)
def run_command(
    file: Experiment,
    scale: Scale = "paper",
    out: Out = None,
    only: Only = None,
    resume: Resume = True,
    stale: StaleCode = Stale.FAIL,
    address: Address = None,
    executor: ExecutorOption = ExecutorName.AUTO,
    actors: NumActors = 1,
    cpus: Cpus = 1.0,
    gpus: Gpus = "auto",
    trials: Trials = None,
    pack: PackSize = "auto",
    autoscale: Autoscale = False,
    engine: Engine = "auto",
    tracking_uri: TrackingUri = None,
    track: Track = Tracking.AUTO,
    try_first: TryFirst = True,
    keep_states: KeepStates = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Run the sweep of an experiment file; leave out runs that ended without an error."""
    options = locals()
    from raysafl.sweep.experiment_file import load_sweep

    options["only"] = _pairs_of(only)
    options["pack"] = int(pack) if pack.isdecimal() else pack
    _run_sweep(load_sweep(file).at(scale), options)


@app.command("report")
def report_command(
    paths: Folders,
) -> None:
    """Make runs.parquet, table.md, report.html and the figures of a sweep from its rows."""
    from raysafl.report.pages.screen import screen

    stores = [store for path in paths for store in _sweeps(path)]
    files = []
    damaged = 0
    for store in stores:
        files += _report_anew(store)
        runs = store.runs()
        damaged += runs.loc[runs["status"] == "damaged", "run_id"].nunique()
        damaged += store.unreadable()
        console.print(screen(runs, store.manifest(), console.width))
    _say_written(files)
    _refuse_damaged(damaged, console)


@app.command("export")
def export_command(
    path: Annotated[str, typer.Argument(help="Folder or URI of a sweep.")],
    to: Annotated[str, typer.Option(help="Folder to write to.")],
    width: Annotated[
        str,
        typer.Option(help="Inches, or a venue: icml, or icml:2 for both columns."),
    ] = "5.5",
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="AXIS=A,B,...: only these labels of this axis, in this order; may be "
            "repeated for other axes."
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(help="OLD=NEW: rename a label or an axis; may be repeated."),
    ] = None,
) -> None:
    """Write the table (LaTeX) and the figures (PDF, SVG, PNG) for a paper."""
    from raysafl.report.results import load
    from raysafl.storage.manifest import labels_in

    results = load(path)
    # Labels may have commas.
    entries = results.store.manifest().entries
    known = {label for entry in entries for label in entry.labels.values()}
    shown = {axis: labels_in(text, known) for axis, text in _pairs_of(only).items()}
    names = _pairs_of(rename, "--rename", "OLD=NEW")
    files = results.export(to, shown, names, width)
    _say_written(files)


@app.command("results")
def results_command(
    query: Annotated[
        str,
        typer.Argument(
            help="A condition, as \"algorithm == 'SAFARI' and client_prob > 0.5\"; '' for all "
            "runs; or a whole SQL query, as 'select p, avg(best) from runs group by p'."
        ),
    ],
    paths: SomeFolders = None,
    sort: Annotated[
        str,
        typer.Option(
            help="Column to sort by: the best value of a statistic comes first, which is "
            "the smallest of an error or a cost, and the largest of any other column."
        ),
    ] = "",
    ascending: Annotated[
        bool | None,
        typer.Option(
            "--ascending/--descending",
            help="Sort the smallest value first, or the largest, be it the best or not.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Maximum number of rows.", min=1)
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Columns to show, separated by commas.")
    ] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Filter and sort stored runs; statistics are means over finished replicates.

    Stopped runs have those of the rounds that they ran. Runs that have not ended are
    listed without statistics, as running or interrupted.
    """
    from raysafl.report.pages.csv import as_csv
    from raysafl.report.query import as_table, results

    if csv and json:
        raise ValueError("give --csv or --json, not both")
    if any(re.fullmatch(r"[=<>!]+|and|or|in|is|not|like", p) for p in paths or []):
        raise ValueError(
            "a condition is one argument of the shell: put it in quotes, such as "
            "raysafl results \"algorithm == 'SAFARI' and client_prob > 0.5\" results"
        )
    wanted = [name.strip() for name in columns.split(",") if name.strip()]
    locations = [parse_location(path) for path in paths or ["results"]]
    found = results(locations, query, sort, ascending, top, wanted)
    if csv or json:
        text = as_csv(found) if csv else found.to_json(orient="records", indent=1)
        typer.echo(printable(text.rstrip()))
    else:
        console.print(as_table(found), soft_wrap=True)
    # The standard output may be CSV or JSON.
    _refuse_damaged(found.attrs["damaged"], errors)


@app.command("status")
def status_command(
    paths: SomeFolders = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C."),
    ] = False,
) -> None:
    """Say how far sweeps are, from their folders alone: running, interrupted or ended ones."""
    from raysafl.storage.status import status_of

    def text() -> str:
        stores = [store for path in paths or ["results"] for store in _sweeps(path)]
        return "\n\n".join("\n".join(status_of(store).lines()) for store in stores)

    console.print(text(), soft_wrap=True)
    while watch:
        time.sleep(WATCH_SECONDS)
        told = text()
        console.clear()
        console.print(told, soft_wrap=True)


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
        for finding in findings:
            console.print(f"{store.path}: {finding}", soft_wrap=True)
        if findings and repair:
            for finding in forget(store, findings):
                where = finding.where
                console.print(f"{store.path}: forgot {where}", soft_wrap=True)
            # The report may still show what was forgotten.
            shown = map(store.file, ("report.html", "manifest.json"))
            if all(file.is_file() for file in shown):
                _report_anew(store)
            findings = verify(store)
        elif findings:
            advice = "`raysafl verify --repair` forgets what is damaged"
            console.print(f"{store.path}: {advice}", soft_wrap=True)
        if not findings:
            console.print(f"{store.path}: clean", soft_wrap=True)
        left += len(findings)
    if left:
        raise typer.Exit(1)


@app.command("forget")
def forget_command(
    path: Annotated[str, typer.Argument(help="Folder or URI of a sweep.")],
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of runs, as `raysafl results` shows them."),
    ] = None,
    only: Only = None,
    unlisted: Annotated[
        bool,
        typer.Option(
            "--unlisted",
            help="Also the runs that the sweep no longer has: their results are in the "
            "folder and in no table.",
        ),
    ] = False,
) -> None:
    """Delete the results of runs, which ids, labels (--only) or --unlisted choose."""
    from raysafl.storage.store import Store

    store = Store(parse_location(path))
    chosen = _chosen_runs(store, run_ids or [], _pairs_of(only), unlisted)
    with store.lock():
        store.forget(chosen)
        _report_anew(store)
    console.print(
        f"{count(len(chosen), 'run')} forgotten; `raysafl run` computes those again that the "
        "sweep has",
        soft_wrap=True,
    )


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

    if len(paths) < 2:
        raise ValueError("merge takes two folders or more")
    stores = [Store(parse_location(path)) for path in paths]
    into = Store(parse_location(out))
    with ExitStack() as locks:
        for store in stores:
            store.manifest()
            locks.enter_context(store.lock())
        done = merge(stores, into)
        _report_anew(into)
    console.print(f"{short(into.path)}: {done}", soft_wrap=True)


@app.command("recheck")
def recheck_command(
    path: Annotated[str, typer.Argument(help="Folder or URI of a sweep.")],
    number: Annotated[
        int, typer.Option("--number", "-n", help="How many runs, chosen at random.")
    ] = 3,
    file: Annotated[
        Path | None,
        typer.Option(
            help="The experiment file, which runs with classes of your own need."
        ),
    ] = None,
    address: Address = None,
    executor: ExecutorOption = ExecutorName.AUTO,
    actors: NumActors = 1,
    cpus: Cpus = 1.0,
    gpus: Gpus = "auto",
    trials: Trials = None,
    engine: Engine = "auto",
) -> None:
    """Compute finished runs again, and compare their rows; the exit code is 1 if some differ."""
    from raysafl.cluster.hardware import Hardware
    from raysafl.storage.store import Store
    from raysafl.sweep.experiment_file import load_sweep
    from raysafl.sweep.recheck import recheck

    if number < 1:
        raise ValueError(f"-n {number} is no number of runs: give 1 or more")
    if file:
        load_sweep(file)
    of_trial: dict[str, Any] = {"gpus": gpus, "trials": trials}
    hardware = Hardware(actors=actors, cpus=cpus, **of_trial)
    options = {"executor": executor, "address": address, "engine": engine}
    store = Store(parse_location(path))
    found = [*recheck(store, number, hardware=hardware, **options)]
    for name, unlike in found:
        console.print(f"{name}: {unlike or 'equal, bit by bit'}", soft_wrap=True)
    if any(unlike for _, unlike in found):
        raise typer.Exit(1)


@app.command("sync")
def sync_command(
    path: Root,
    tracking_uri: TrackingUri = None,
    track: Track = Tracking.AUTO,
) -> None:
    """Update MLflow from the stored results."""
    from raysafl.tracking.sync import sync

    location = parse_location(path)
    synced = sync(location, tracking_uri, console.print, track)
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
def data_show_command(
    file: Experiment,
    scale: Scale = "paper",
    only: Only = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures; by default data/<sweep>."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Maximum number of rounds that are drawn.", min=1)
    ] = 1000,
) -> None:
    """Show who holds which labels and who comes when, as a table and figures, before a run."""
    from raysafl.cli.data_preview import preview
    from raysafl.sweep.experiment_file import load_sweep

    sweep = load_sweep(file).at(scale)
    labels = _pairs_of(only)
    table, files = preview(sweep, out or Path("data") / sweep.name, labels, rounds)
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
    root: Annotated[
        str, typer.Option(help="Folder or URI of the results.")
    ] = "results",
    address: Address = None,
) -> None:
    """Say what works on this machine, and how to mend what does not."""
    from raysafl.cli.doctor import examine

    location = parse_location(root)
    checks = examine(location, address)
    for check in checks:
        mark = "ok  " if check.passed else "FAIL"
        console.print(f"{mark}  {check.name}: {check.message}", soft_wrap=True)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _report_anew(store: Any) -> list[Any]:
    """Write `runs.parquet` and the report from what a folder holds; return its files."""
    from raysafl.report.write import write_report
    from raysafl.storage.runs_table import write_runs_table

    write_runs_table(store)
    return write_report(store)


def _pairs_of(
    texts: list[str] | None, option: str = "--only", form: str = "AXIS=LABEL"
) -> dict[str, str]:
    """Split what an option takes, such as each `AXIS=LABEL`, at its first `=`."""
    for text in texts or []:
        if "=" not in text:
            raise ValueError(f"{option} takes {form}, not '{text}'")
    pairs = [text.split("=", 1) for text in texts or []]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{option} is given more than once for '{name}'; give one")
    return dict(pairs)


def _sweeps(path: str) -> list[Any]:
    """Return the sweeps in a folder, or raise ValueError if there is none."""
    from raysafl.storage.store import sweeps_in

    return sweeps_in(parse_location(path))


def _chosen_runs(
    store: Any, run_ids: list[str], only: Mapping[str, str], unlisted: bool
) -> set[str]:
    """Return the ids of the runs that are to be forgotten.

    Raises:
        ValueError: none is named, or one that the folder does not hold.
    """
    manifest = store.manifest()
    held: set[str] = store.begun()
    if not (run_ids or only or unlisted):
        raise ValueError("name the runs by their ids, by --only or by --unlisted")
    for run_id in run_ids:
        if run_id not in held:
            raise ValueError(
                f"{store.path} holds no run {run_id}: {nearest(run_id, held)}"
            )
    chosen = set(run_ids)
    if only:
        chosen |= set(manifest.select(only))
    if unlisted:
        chosen |= held - manifest.labels().keys()
    return chosen & held


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
    lost = any(True for name in ("rounds", "ledger") for _ in root.glob(f"{name}/*"))
    return [Store(root)] if lost else _sweeps(path)


def _run_sweep(sweep: Any, options: Mapping[str, Any]) -> None:
    """Run a sweep, print its table and where the results are.

    The exit code is 1 if a run failed, diverged or is missing.

    Args:
        sweep: the sweep.
        options: the options of the command, some of which `Runner` and `Hardware` have
            by the same names.
    """
    from raysafl.cluster.hardware import Hardware
    from raysafl.sweep.runner import Runner

    names = {field.name for field in fields(Runner)}
    own = {name: value for name, value in options.items() if name in names}
    of_trial = {n: v for n, v in options.items() if n in Hardware.model_fields}
    # The manifest names the command, so that the report can say how to run it again.
    command = shlex.join(["raysafl", *sys.argv[1:]])
    own |= {"hardware": Hardware(**of_trial), "command": command}
    runner = Runner(sweep, console=console, **own)
    if options.get("dry_run"):
        console.print(str(runner.forecast()), soft_wrap=True)
        return
    outcome = runner.run()
    # `--quiet` hides the progress only, and `Runner` is silent then.
    if options["quiet"]:
        outcome.print_to(console)
    if not outcome.ok:
        raise typer.Exit(1)


class _RedactingFormatter(logging.Formatter):
    """Formats what libraries log, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


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
    """Run a command; turn whatever ends it into one message and an exit code.

    No secrets of the environment are shown in messages, warnings, logs and tracebacks of libraries.
    """
    warnings.showwarning = _show_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_RedactingFormatter())
    try:
        app()
    except BaseException as error:
        sys.exit(explain(error, _show_error))
