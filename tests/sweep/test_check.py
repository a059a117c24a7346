"""Sweeps with a mistake are refused with a clear message, and their folder stays as it was."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.folders import contents, finished
from ray import tune

from raysafl import FedAvg, Run, Runner, Sweep, Table
from raysafl.quickstart import BASE

RUN = BASE.replace(rounds=1, replicates=1)
# Two methods for s = 0, and one of them for s = 2.
RUNS = {
    ("FedAvg", 0): RUN.replace({"participation.s": 0}),
    ("FedAvg", 2): RUN.replace({"participation.s": 2}),
    ("lazy", 0): RUN.replace({"participation.s": 0, "local.lr": 0.01}),
}


def sweep(**changes: Any) -> Sweep:
    return Sweep(**{"name": "tiny", "runs": RUNS, "axes": ("method", "s"), **changes})


def table(**changes: Any) -> dict[str, Any]:
    return {"table": Table(**{"rows": ["method"], "columns": ["s"], **changes})}


def labelled(*labels: Any) -> dict[str, Any]:
    """Give each label of one axis to a run of its own."""
    runs = {label: RUN.replace(seed=seed) for seed, label in enumerate(labels)}
    return {"runs": runs, "axes": ("x",)}


def space(**changes: Any) -> dict[str, Any]:
    lr = {"local.lr": tune.uniform(0.1, 1)}
    return {"runs": (), "axes": (), "space": lr, "base": RUN, **changes}


PBT = tune.schedulers.PopulationBasedTraining(
    hyperparam_mutations={"local.lr": [0.1, 0.2]}
)
CASES: dict[str, tuple[dict[str, Any], str]] = {
    # the table
    "baseline": (table(baseline="lzy"), "has method='lzy': did you mean 'lazy'"),
    "statistic": (table(statistic="lst10"), "'lst10': did you mean 'last10'"),
    "columns": (table(columns=["S", "n0"]), "table: columns: there is no axis 'S'"),
    "lines": (table(lines="methd"), "no axis 'methd': did you mean 'method'"),
    "both": (table(rows=["method", "s"]), "rows and columns: 's' is given twice"),
    # axes and labels
    "axes, text": ({"axes": "ms"}, "give a tuple with one name per label"),
    "1 and '1'": (labelled(1, "1"), r"the labels of the runs: \('1',\) is given twice"),
    "label, type": (labelled(FedAvg()), r"axis 'x' has the label FedAvg\("),
    "label, NaN": (labelled(0.1, float("nan")), "axis 'x' has the label nan"),
    # runs
    "name": ({"name": "a/b"}, "becomes a folder; 'a/b' cannot be one"),
    "no name": ({"name": [RUN]}, r"is its name.*Sweep\('name', runs=\.\.\.\)"),
    "empty": ({"runs": {}}, "exactly one of them; there is no run in either"),
    "class": ({"runs": [Run]}, r"the run with the label 0 is <class .*; give a Run"),
    "used up": ({"runs": (run for run in [RUN])}, "generator .*; give a list of runs"),
    # search spaces
    "empty grid": (
        space(space={"local.lr": tune.grid_search([])}),
        "space has a grid without values",
    ),
    "no base": (space(base=None), "needs base"),
    "base": (space(base=3), r"base is 3; give a Run"),
    "twice": (
        space(space={"local.lr": tune.grid_search([0.1, 0.1])}),
        r"\('0.1',\) is given twice",
    ),
    "metric": (space(metric="accuracy"), "'accuracy': did you mean 'test_accuracy'"),
    "metric of the scheduler": (
        space(scheduler=tune.schedulers.ASHAScheduler(metric="acc", mode="max")),
        "the scheduler has the metric 'acc' already",
    ),
    "scheduler that changes runs": (space(scheduler=PBT), "PopulationBasedTraining"),
    "metric of the searcher": (
        space(search_alg=SimpleNamespace(metric="acc", suggest=None)),
        "no run reports the metric 'acc'",
    ),
    "text as a scheduler": (space(scheduler="asha"), "scheduler is 'asha'; give one"),
    "class of a searcher": (
        space(search_alg=tune.search.ConcurrencyLimiter),
        "search_alg is <class .*; give one of Tune's",
    ),
    "mode": (space(mode="maximum"), "mode is 'maximum'; give 'max' or 'min'"),
    "axes of the table": (
        space(**table(rows=["lr"], columns=[])),
        "no axis 'lr': .*local.lr",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_sweep_is_refused_when_it_is_made(case: str) -> None:
    changes, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        sweep(**changes)


def test_a_space_of_which_no_run_can_be_made_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    wrong = sweep(**space(space={"rounds": [1, 2]}))
    with pytest.raises(ValueError, match="several values are an axis of a grid"):
        Runner(wrong, tmp_path / "x", track="none", quiet=True).run()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("scale", ["paper", "mine"])
def test_functions_that_return_no_run_are_named(scale: str, tiny: Run) -> None:
    grid = {"local.lr": tune.grid_search([0.1])}
    make = (lambda config: None) if scale == "paper" else tiny.replace
    wrong = Sweep("x", space=grid, base=make, scales={"mine": lambda run: None})  # type: ignore[arg-type,return-value]
    what = (
        "what base returned" if scale == "paper" else r"what scales\['mine'\] returned"
    )
    with pytest.raises(ValueError, match=rf"{what}.* is None; give a Run"):
        wrong.at(scale).manifest()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep."""
    return finished(sweep(), tmp_path_factory.mktemp("results") / "there").path


def test_data_that_do_not_fit_leave_no_new_folder_and_no_new_file(
    tiny: Run, tmp_path: Path
) -> None:
    wrong = sweep(runs=[tiny.replace({"data.partition.p": 11})], axes=())
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "results" / "new", tmp_path / "empty"):
        with pytest.raises(ValueError, match="p = 11 classes per client"):
            Runner(wrong, out=folder, track="none", quiet=True).run()
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_a_folder_of_another_sweep_stays_as_it_was(there: Path) -> None:
    before = contents(there)
    own = "holds sweep 'tiny' at scale 'paper', not "
    for other in (sweep(name="other"), sweep().at("smoke")):
        with pytest.raises(ValueError, match=f"{own}'{other.name}' at '{other.scale}"):
            Runner(other, out=there, track="none").run()
    assert contents(there) == before
