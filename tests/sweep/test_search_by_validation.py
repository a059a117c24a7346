"""Searches go by the validation samples where there are some, and the report says by what."""

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from raysafl import Run, Sweep, Validation
from raysafl.objectives import Regression
from raysafl.report.wording import search_note
from raysafl.storage.manifest import Manifest

LOCAL = {"local.lr": tune.loguniform(0.01, 1.0)}


@pytest.fixture
def validated(tiny: Run) -> Run:
    return tiny.replace({"data.validation": Validation(server=0.2)})


def test_a_search_goes_by_the_validation_samples_if_every_run_has_some(
    tiny: Run, validated: Run
) -> None:
    def goal(base: Run, **more: object) -> tuple[str, str]:
        sweep = Sweep("s", space=LOCAL, base=base, **more)  # type: ignore[arg-type]
        return sweep.manifest().goal or ("", "")

    assert goal(tiny) == ("test_accuracy", "max")
    assert goal(validated) == ("val_accuracy", "max")
    assert goal(validated, metric="val_loss") == ("val_loss", "min")
    assert goal(validated, metric="test_accuracy") == ("test_accuracy", "max")
    both = Sweep("s", [tiny, validated], scheduler=ASHAScheduler())
    assert both.manifest().goal == ("test_accuracy", "max")
    number = validated.replace(objective=Regression())
    assert goal(number)[0].startswith("val_") and goal(number)[1] == "min"


def test_the_report_says_by_what_runs_were_chosen_or_stopped(
    tiny: Run, validated: Run
) -> None:
    def note(base: Run, **more: object) -> str:
        sweep = Sweep("s", space=LOCAL, base=base, **more)  # type: ignore[arg-type]
        manifest = sweep.manifest()
        assert Manifest.from_json(manifest.to_json()) == manifest
        return search_note(manifest)

    assert note(tiny) == ""
    by_test = note(tiny, scheduler=ASHAScheduler())
    assert "by `test_accuracy`, which is measured on the test set" in by_test
    by_validation = note(validated, scheduler=ASHAScheduler())
    assert "by `val_accuracy`, and not by anything" in by_validation
    assert Sweep("s", [tiny]).manifest().searched_by == ""
