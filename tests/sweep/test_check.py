"""Sweeps with a mistake are refused with a clear message, and their folder stays as it was."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.folders import contents, finished
from ray import tune

from raysafl import FedAvg, Run, Runner, Sweep, Table
from raysafl.quickstart import BASE


def runs(run: Run) -> dict[tuple[str, int], Run]:
    """Two methods for s = 0, and one of them for s = 2."""
    return {
        ("FedAvg", 0): run.replace({"participation.s": 0}),
        ("FedAvg", 2): run.replace({"participation.s": 2}),
        ("lazy", 0): run.replace({"participation.s": 0, "local.lr": 0.01}),
    }


def sweep(run: Run, **changes: Any) -> Sweep:
    return Sweep(
        **{"name": "tiny", "runs": runs(run), "axes": ("method", "s"), **changes}
    )


def table(**changes: Any) -> dict[str, Table]:
    return {"table": Table(**{"rows": ["method"], "columns": ["s"], **changes})}


def labelled(*labels: Any) -> Callable[[Run], dict[str, Any]]:
    """Give each label of one axis to a run of its own."""
    return lambda run: {
        "runs": {label: run.replace(seed=seed) for seed, label in enumerate(labels)},
        "axes": ("x",),
    }


CASES: dict[str, tuple[Mapping[str, Any] | Callable[[Run], Mapping[str, Any]], str]] = {
    # the table
    "baseline": (
        table(baseline="lzy"),
        "table: baseline: no run has method='lzy': did you mean 'lazy'",
    ),
    "lines": (
        table(lines="methd"),
        "table: lines: there is no axis 'methd': did you mean 'method'",
    ),
    "statistic": (
        table(statistic="lst10"),
        "table: statistic: there is no statistic 'lst10': did you mean 'last10'",
    ),
    "also": (
        table(also=["final", "bset"]),
        "table: also: there is no statistic 'bset': did you mean 'best'",
    ),
    "columns": (table(columns=["S", "n0"]), "table: columns: there is no axis 'S'"),
    "both": (
        table(rows=["method", "s"]),
        "table: rows and columns: 's' is given twice",
    ),
    # axes and labels
    "axes, text": (
        {"axes": "ms"},
        r"axes is 'ms', of type str; give a tuple with one name per label",
    ),
    "axes, twice": ({"axes": ("s", "s")}, "axes: 's' is given twice"),
    "1 and '1'": (labelled(1, "1"), r"the labels of the runs: \('1',\) is given twice"),
    "one label, two runs": (
        labelled("a", ("a",)),
        r"the labels of the runs: \('a',\) is given twice",
    ),
    "label, type": (
        labelled(FedAvg()),
        r"axis 'x' has the label FedAvg\(.* type FedAvg",
    ),
    "label, NaN": (
        labelled(0.1, float("nan")),
        "axis 'x' has the label nan, of type float; a label is text, a finite number",
    ),
    # runs
    "empty": ({"runs": {}}, "exactly one of them; there is no run in either"),
    "class": ({"runs": [Run]}, r"runs\[0\] is the class Run; give a Run"),
    "one run": (lambda run: {"runs": run}, "of type Run; give a list of runs"),
    "used up": (
        lambda run: {"runs": (r for r in [run]), "axes": ()},
        "of type generator; give a list of runs",
    ),
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep."""
    run = BASE.replace(rounds=1, replicates=1)
    return finished(sweep(run), tmp_path_factory.mktemp("results") / "there").path


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_sweep_is_refused_and_its_folder_stays_as_it_was(
    case: str, there: Path
) -> None:
    changes, message = CASES[case]
    tiny = BASE.replace(rounds=1, replicates=1)
    nowhere = there.parent / "nowhere"
    before = contents(there)
    for folder in (there, nowhere):
        with pytest.raises(ValueError, match=rf"^sweep 'tiny'.*{message}"):
            wrong = sweep(tiny, **(changes(tiny) if callable(changes) else changes))
            Runner(wrong, out=folder, track="none", quiet=True).run()
    assert contents(there) == before and not nowhere.exists()


SPACES: dict[str, tuple[dict[str, Any], str]] = {
    "empty grid": (
        {"space": {"local.lr": tune.grid_search([])}},
        "space has a grid without values",
    ),
    "no base": (
        {"space": {"local.lr": tune.uniform(0, 1)}, "base": None},
        "needs base",
    ),
    "base": ({"base": 3}, "base is 3, of type int; give a Run"),
    "twice": (
        {"space": {"local.lr": tune.grid_search([0.1, 0.1])}},
        r"\('0.1',\) is given twice",
    ),
    "metric": (
        {"metric": "accuracy"},
        "no run reports the metric 'accuracy': did you mean 'test_accuracy'",
    ),
    "metric of the scheduler": (
        {"scheduler": tune.schedulers.ASHAScheduler(metric="acc", mode="max")},
        "the scheduler has the metric 'acc' already",
    ),
    "scheduler that changes runs": (
        {
            "scheduler": tune.schedulers.PopulationBasedTraining(
                hyperparam_mutations={"local.lr": [0.1, 0.2]}
            )
        },
        "PopulationBasedTraining changes the configuration of runs that have begun",
    ),
    "metric of the searcher": (
        {"search_alg": SimpleNamespace(metric="acc", suggest=None)},
        "no run reports the metric 'acc'",
    ),
    "text as a scheduler": (
        {"scheduler": "asha"},
        "scheduler is 'asha', of type str; give a scheduler of Tune's, such as",
    ),
    "class of a searcher": (
        {"search_alg": tune.search.ConcurrencyLimiter},
        "search_alg is the class ConcurrencyLimiter; give a Searcher",
    ),
    "mode": ({"mode": "maximum"}, "mode is 'maximum'; give 'max' or 'min'"),
    "axes of the table": (table(rows=["lr"], columns=[]), "no axis 'lr': .*local.lr"),
}


@pytest.mark.parametrize("case", SPACES)
def test_a_wrong_search_space_is_refused_before_anything_is_sampled(
    case: str, tiny: Run
) -> None:
    changes, message = SPACES[case]
    space = {"local.lr": tune.uniform(0.1, 1)}
    with pytest.raises(ValueError, match=rf"^sweep 'x'.*{message}"):
        Sweep(**{"name": "x", "space": space, "base": tiny, **changes})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"local.lrr": tune.uniform(0, 1)}, "unknown field 'lrr': did you mean 'lr'"),
        ({"rounds": [1, 2]}, "several values are an axis of a grid: fl.grid"),
    ],
)
def test_a_space_of_which_no_run_can_be_made_is_refused_before_anything_runs(
    space: dict[str, Any], message: str, tiny: Run, tmp_path: Path
) -> None:
    sweep = Sweep("x", space=space, base=tiny)
    with pytest.raises(ValueError, match=message):
        Runner(sweep, tmp_path / "x", track="none", quiet=True).run()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("scale", ["paper", "mine"])
def test_functions_that_return_no_run_are_named(scale: str, tiny: Run) -> None:
    grid = {"local.lr": tune.grid_search([0.1])}
    make = (lambda config: None) if scale == "paper" else tiny.replace
    wrong = Sweep("x", space=grid, base=make, scales={"mine": lambda run: None})  # type: ignore[arg-type,return-value]
    what = (
        "what base returned" if scale == "paper" else r"what scales\['mine'\] returned"
    )
    with pytest.raises(ValueError, match=rf"{what}.* is None, of type NoneType"):
        wrong.at(scale).manifest()


def test_a_name_that_is_missing_or_no_name_of_a_folder_is_refused(tiny: Run) -> None:
    with pytest.raises(ValueError, match="becomes a folder; 'a/b' cannot be one"):
        Sweep("a/b", [tiny])
    with pytest.raises(ValueError, match=r"is its name.*Sweep\('name', runs=\.\.\.\)"):
        Sweep([tiny])  # type: ignore[arg-type]


def test_data_that_do_not_fit_leave_no_new_folder_and_no_new_file(
    tiny: Run, tmp_path: Path
) -> None:
    wrong = sweep(tiny.replace({"data.partition.p": 11}))
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "results" / "new", tmp_path / "empty"):
        with pytest.raises(ValueError, match="p = 11 classes per client"):
            Runner(wrong, out=folder, track="none", quiet=True).run()
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_a_folder_of_another_sweep_stays_as_it_was(tiny: Run, there: Path) -> None:
    before = contents(there)
    own = "holds sweep 'tiny' at scale 'paper', not "
    for other in (sweep(tiny, name="other"), sweep(tiny).at("smoke")):
        with pytest.raises(ValueError, match=f"{own}'{other.name}' at '{other.scale}"):
            Runner(other, out=there, track="none").run()
    assert contents(there) == before
