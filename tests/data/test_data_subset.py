"""Some samples of a dataset: for small runs."""

import numpy as np
import pytest

from raysafl import Digits
from raysafl.data import Subset, Synthetic


def test_a_subset_is_a_draw_of_both_parts() -> None:
    whole, some = Digits().load(), Subset(dataset=Digits(), train=100, test=50).load()
    for part, pool, size in (
        (some.train, whole.train, 100),
        (some.test, whole.test, 50),
    ):
        images, all_images = (
            {(image.tobytes(), label) for image, label in zip(s.x, s.y, strict=True)}
            for s in (part, pool)
        )
        assert len(images) == len(part) == size and images <= all_images
    assert some.num_classes == 10
    assert some.names == whole.names and some.train.scale == whole.train.scale
    assert (
        5 <= np.bincount(some.train.y).min() and np.bincount(some.train.y).max() <= 20
    )


def test_a_subset_is_a_function_of_its_seed_and_never_larger() -> None:
    first, again, other = (
        Subset(dataset=Digits(), train=100, seed=seed).load().train.y
        for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    everything = Subset(dataset=Digits(), train=10**6).load()
    assert np.array_equal(everything.train.x, Digits().load().train.x)


def test_the_first_classes_are_kept_and_users_stay() -> None:
    few = Subset(dataset=Digits(), classes=3).load()
    assert set(few.train.y) == set(few.test.y) == {0, 1, 2} and few.names == (
        "0",
        "1",
        "2",
    )
    with pytest.raises(ValueError, match=r"classes=11 needs .* and 'digits' has 10"):
        Subset(dataset=Digits(), classes=11).load()
    whole, users = (
        Synthetic().load(),
        Subset(dataset=Synthetic(), train=40).load().train.users,
    )
    assert whole.train.users is not None and users is not None
    assert len(users) == 40 and set(users) <= set(whole.train.users)
