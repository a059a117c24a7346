"""Configurations that are drawn beforehand are those that Tune itself would draw."""

from pathlib import Path

from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysafl.sweep.sampling import SEED, draw

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
