"""Grids: axes, fields by their bare names, refusals; and what is drawn is what Tune would draw."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysafl import SAFARI, FedAvg, Sweep, Table, grid
from raysafl.algorithms import SCAFFOLD, FedVARP
from raysafl.quickstart import BASE
from raysafl.sweep.grid import SEED, draw, known_runs, labels_of

SERVED = BASE.replace(algorithm=SAFARI(server_update=BASE.local))


def test_a_grid_is_the_sweep_of_all_combinations_with_named_axes() -> None:
    made = grid(
        SERVED,
        {"client_prob": [0.5, 1.0], "local.lr": np.array([0.1, 0.2])},
        seeds=3,
        name="mine",
        title="Two by two",
    )
    assert isinstance(made, Sweep) and made.name == "mine" and made.is_grid
    assert made.axis_names == ["client_prob", "local.lr"] and made.title == "Two by two"
    runs = made.labelled()
    assert list(runs) == [(p, lr) for p in (0.5, 1.0) for lr in (0.1, 0.2)]
    for (prob, lr), run in runs.items():
        changes = {"algorithm.client_prob": prob, "local.lr": lr}
        assert run == SERVED.replace(changes, replicates=3)


def test_a_table_of_a_statistic_alone_has_the_rows_and_columns_that_none_has() -> None:
    axes = {"client_prob": [0.4, 0.6], "n0": [50, 100]}
    own, usual = (
        grid(SERVED, axes, table=table).manifest().table
        for table in (Table(statistic="last10"), None)
    )
    assert own.statistic == "last10" and usual.statistic == "final"
    assert (own.rows, own.columns) == (usual.rows, usual.columns)
    assert (own.rows, own.columns) == (["client_prob"], ["n0"])


def test_an_axis_is_named_by_the_end_of_its_path_that_no_other_field_has() -> None:
    inner = {"algorithm.inner.lr": [1.0], "server_update.lr": [0.1], "p": [1]}
    inner["algorithm.server_update.lr"] = inner.pop("server_update.lr")
    made = grid(SERVED, inner)
    assert made.axis_names == ["inner.lr", "p", "server_update.lr"]
    fields = {"algorithm.lr": [1.0], "local.lr": [0.1], "rounds": [2]}
    made = grid(BASE.replace(algorithm=FedAvg()), fields)
    assert made.axis_names == ["algorithm.lr", "local.lr", "rounds"]


def test_components_are_labelled_by_their_class_or_as_one_says() -> None:
    axis: Any = {"algorithm": [FedAvg(), SAFARI()], "algorithm.client_prob": [0.5]}
    assert list(grid(BASE, {"algorithm": [FedAvg(), SAFARI()]}).labelled()) == [
        ("FedAvg",),
        ("SAFARI",),
    ]
    own = {"algorithm": {"often": SAFARI(client_prob=0.9), "rarely": SAFARI()}}
    assert list(grid(BASE, own).labelled()) == [("often",), ("rarely",)]
    # A field that the run of the grid leaves out.
    assert list(grid(BASE, {"devices": {"none": None}}).labelled()) == [("none",)]
    # A field of a part that another axis puts in.
    axis["algorithm"] = [SAFARI()]
    (run,) = grid(BASE.replace(algorithm=FedAvg()), axis).labelled().values()
    assert run.algorithm == SAFARI(client_prob=0.5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"clients": [5]}, "dotted paths data.clients, participation.clients"),
        ({"client_probb": [0.5]}, "'client_probb': did you mean 'client_prob'?"),
        ({"local.lrr": [0.5]}, "unknown field 'lrr': did you mean 'lr'?"),
        ({"rounds": 3}, "'rounds' is given 3; give a list of its values"),
        ({"rounds": []}, "'rounds' needs values with different labels, but has []"),
        ({"rounds": [1, 1]}, "give each value once, or a mapping from labels"),
        ({"rounds": [0]}, "rounds: Input should be greater than 0 (given: 0)"),
        ({}, "a grid needs an axis or several different ones"),
        (3, "such as {'rounds': [50, 100]}, but has 3"),
        (
            {"client_prob": [0.1], "algorithm.client_prob": [0.2]},
            "but has ['client_prob', 'algorithm.client_prob']",
        ),
    ],
)
def test_a_wrong_grid_is_refused(fields: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        grid(SERVED, fields)


SPACE = {
    "uniform": tune.uniform(0, 1),
    "choice": tune.choice(["a", "b", "c"]),
    "log": tune.loguniform(1e-3, 1.0),
    "whole": tune.randint(0, 1000),
    "grid": tune.grid_search([1, 2]),
    "fixed": 7,
}


def test_the_configurations_are_those_of_tunes_own_random_sampler(
    tmp_path: Path,
) -> None:
    sampler = BasicVariantGenerator(random_state=SEED)
    tune.register_trainable("nothing", tune.Trainable)
    experiment = Experiment(
        "e", "nothing", config=SPACE, num_samples=5, storage_path=str(tmp_path)
    )
    sampler.add_configurations([experiment])
    expected = []
    while trial := sampler.next_trial():
        expected.append(trial.config)
    assert len(expected) == 10 and draw(SPACE, 5) == expected


def test_the_first_of_more_samples_are_those_of_fewer() -> None:
    assert draw(SPACE, 9)[:8] == draw(SPACE, 4)


def test_components_that_were_drawn_are_told_apart_by_class_and_given_fields() -> None:
    methods = [FedVARP(), SCAFFOLD(), SAFARI(client_prob=0.4), SAFARI()]
    texts = [labels_of({"algorithm": own})["algorithm"] for own in methods]
    assert texts == ["FedVARP", "SCAFFOLD", "SAFARI(client_prob=0.4)", "SAFARI"]
    space = {"algorithm": tune.grid_search(methods), "seed": tune.choice([7])}
    drawn, runs, _ = known_runs(Sweep("drawn", space=space, base=BASE))
    assert [entry.labels["algorithm"] for entry in drawn.entries] == texts
    assert [run.algorithm for run in runs.values()] == methods


def test_different_runs_that_were_drawn_with_the_same_labels_are_refused() -> None:
    rates = iter([0.1, 0.2])
    space = {"batch_size": tune.choice([16])}
    sweep = Sweep(
        "drawn",
        space=space,
        base=lambda config: BASE.replace({"local.lr": next(rates)}),
        num_samples=2,
    )
    with pytest.raises(ValueError, match=r"the labels of the runs: .*is given twice"):
        known_runs(sweep)
