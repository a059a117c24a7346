"""Run two rounds of every entry of experiments/, and check printed numbers and reports."""

import importlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.experiments import FOLDER, forget_experiments, sweep_files
from helpers.here import session_of
from helpers.reports import markdown
from helpers.small_data import write_all

from raysafl import Hardware, Run, Runner, Sweep
from raysafl.core.problem import Dataset
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.experiment_file import load_sweep
from raysafl.sweep.packs import form_packs
from raysafl.sweep.prepare import prepare

# they print a table, without a sweep
SCRIPTS = {"safari/theorem1.py", "fsl/figure9.py"} | {
    f"theorems/{name}.py" for name in ("limits", "rates", "speed_up", "learnability")
}
PATHS = sweep_files()
FILES = sorted(PATHS)
ACCEPTANCE = pytest.mark.acceptance
# What the vectors of runs that advance together take is a share of it.
MEMORY = 4e9
DRAWN = ("safari_table3_mnist", "safari_readings", "fast_table3_cifar10", "fsl_table1")


class World:
    """Small data, and the results of all runs so far: files share runs and kinds of entries."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root, self.done = path, root, Store(path / "all")
        self.done.create()
        self.datasets: dict[str, Dataset] = {}
        self.ran: set[str] = set()
        self.parts: set[str] = set()

    def of_new_kinds(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs with a part that no run had before; if there is none, the first run.

        A part is a field of a run, such as its algorithm, but for numbers.
        """
        every, chosen = list(runs), list[Run]()
        for run in every:
            fields = json.loads(run.to_json()).items()
            parts = {re.sub(r"\d[\d.e-]*", "0", str(field)) for field in fields}
            if parts - self.parts:
                chosen.append(run)
            self.parts |= parts
        return chosen or every[:1]

    def run(self, runs: Iterable[Run]) -> None:
        """Carry out those that have not been yet, in the packs of a trial."""
        todo = {run.id: run for run in runs if run.id not in self.ran}
        for run in todo.values():
            key = run.data.source_key
            if key not in self.datasets:
                self.datasets[key] = run.data.load()
        cells = [run.split() for run in todo.values()]
        packs = form_packs(cells, self.datasets, Hardware(), 1, MEMORY)
        for pack in packs:
            first = pack.runs[0]
            work = Worker(
                [entry for run in pack.runs for entry in run.cells],
                self.datasets[first.data.source_key],
                first.model,
                objective=first.objective,
            )
            session = session_of(pack.runs, work)
            session.advance(np.inf)
            news = session.news()
            self.done.take(news.ends, news.rows, news.clients, news.models)
        self.ran |= todo.keys()

    def folder(self, sweep: Sweep, runs: Collection[Run]) -> Store:
        """Return the results folder of some runs of a sweep, as `raysafl run` would leave it."""
        store = Store(self.path / sweep.name)
        # Another test may have left other runs of this sweep there.
        shutil.rmtree(store.path, ignore_errors=True)
        store.create()
        store.write_manifest(sweep.manifest())
        self.run(runs)
        done = self.done.results({cell for run in runs for cell in run.cell_ids})
        store.take(list(done.ends.values()), done.rows, done.clients)
        return store


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("data")
    write_all(root, patch)
    forget_experiments()
    yield World(tmp_path_factory.mktemp("results"), root)
    sweep_of.cache_clear()
    patch.undo()
    forget_experiments()


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Use the small data in place of real ones."""
    monkeypatch.setenv("RAYSAFL_DATA", str(world.root))
    return world


@cache
def sweep_of(name: str) -> Sweep:
    return load_sweep(PATHS[name])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[ACCEPTANCE] * (name != "safari_table3_mnist"))
        for name in FILES
    ],
)
def test_two_rounds_of_every_kind_of_entry_run_and_are_reported(
    name: str, here: World
) -> None:
    """Each algorithm, policy, model and so on runs in the first file that has it.

    All entries are tried on their data.
    """
    sweep = sweep_of(name).at("smoke")
    every = sweep.labelled().values()
    prepare(every)
    chosen = here.of_new_kinds(every)
    store = here.folder(sweep, chosen)
    runs = write_runs_table(store)
    assert set(runs["run_id"]) == {run.id for run in chosen}
    assert runs["status"].eq("finished").all() and runs["rounds"].eq(2).all(), runs[
        "reason"
    ]
    assert runs["final"].between(0, 1).all()
    text = markdown(runs, store.manifest())
    assert "Scale: smoke" in text
    if name in DRAWN:  # drawing all of them takes minutes
        assert write_report(store)[0].read_text() == text
        assert (store.path / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", FILES)
def test_printed_numbers_and_claims_belong_to_entries(
    name: str, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    judging = importlib.import_module("experiments.papercheck.judging")
    measured = importlib.import_module("experiments.tools.measured")
    beside = measured.comparison_of(name)
    manifest = beside.sweep.manifest()
    for printed in [*beside.printed(manifest), *beside.further(manifest)]:
        assert any(printed.is_of(entry.labels) for entry in manifest.entries), printed
    if beside.paper:
        # Each entry has a number, or is a baseline, or stands in a claim.
        said = [
            *(p.labels for p in beside.printed(manifest)),
            *([beside.minus] * bool(beside.minus)),
        ]
        said += [c.where for c in beside.claims if c.where]
        for entry in manifest.entries:
            assert any(labels.items() <= entry.labels.items() for labels in said), entry
    rows = [{f"label.{a}": v for a, v in e.labels.items()} for e in manifest.entries]
    names = [manifest.table.statistic, *beside.statistics]
    ones = dict.fromkeys([f"mean.{statistic}" for statistic in names], 1.0)
    entries = pd.DataFrame(rows).assign(above_chance=1.0, **ones)
    found = judging.Compared(beside, pd.DataFrame(), manifest, entries, [], [])
    for claim in beside.claims:
        # It speaks of entries that exist, and of statistics that runs can have.
        assert judging.check_claim(claim, found).places, claim
    assert manifest.known(beside.statistics).keys() == {*beside.statistics}


@pytest.mark.parametrize("name", FILES)
def test_every_scale_has_the_same_entries_and_the_paper_scale_is_largest(
    name: str, here: World
) -> None:
    sweep = sweep_of(name)
    full = sweep.labelled()
    for scale in {"smoke", *sweep.scales}:
        runs = sweep.at(scale).labelled()
        assert list(runs) == list(full)
        assert len({run.id for run in runs.values()}) == len(full)
        assert all(runs[key].rounds < full[key].rounds for key in full)
    assert sweep.name == name and sweep.title and len(sweep.notes) > 100


@pytest.mark.acceptance
def test_the_dissimilarities_of_fsl_fall_with_c(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    module = importlib.import_module("experiments.fsl.figure9")
    out = here.path / "figure9"
    module.main(["--scale", "smoke", "--dataset", "CIFAR-10", "--out", str(out)])
    frame = pd.read_csv(out / "fsl_figure9.csv")
    unlike = frame.groupby("C").G2.mean()
    assert unlike[1] > unlike[2] > unlike[5]
    assert (out / "fsl_figure9.png").stat().st_size > 10_000
    assert (frame.xi2 < frame.G2).all() and frame.t.unique().tolist() == [0, 1, 2]


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_a_file_runs_on_ray_as_in_one_process(here: World, tmp_path: Path) -> None:
    """Modules that an experiment imports from other folders are found on Ray's workers."""
    out = tmp_path / "out"
    options = {
        "out": out,
        "quiet": True,
        "track": "none",
        "hardware": Hardware(cpus=0.5, trials=1),
        "executor": "ray",
    }
    sweep = sweep_of("safari_table1_mnist").at("smoke")
    outcome = Runner(sweep, only={"s": "4"}, **options).run()
    assert outcome.ok and len(outcome.runs) == 4
    runs = sweep.labelled().values()
    expected = write_runs_table(here.folder(sweep, runs))
    expected = expected[expected["label.s"] == 4]
    by_run = [
        frame.set_index("run_id")["final"].to_dict()
        for frame in (outcome.runs, expected)
    ]
    assert by_run[0] == by_run[1]
    assert (out / "table.md").is_file() and (out / "curves.png").is_file()
