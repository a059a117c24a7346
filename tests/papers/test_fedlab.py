"""FedLab's deal of labels: FAST's known ones, and what holds of any."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from helpers.fast_authors import cohort

from experiments.fast import fedlab
from experiments.fast.fedlab import FedLabDirichlet
from raysafl.algorithms import Key
from raysafl.data import FashionMnist
from raysafl.data.partitions import SamplesToSpread

# Of each alpha: the first clients' sizes, the smallest and the largest, the SHA-256 of
# all indices, and the first cohort of Beta, which the same generator draws next.
KNOWN = {
    0.1: (
        [363, 783, 117, 227, 828],
        12,
        2493,
        "457b5ff2f8fb",
        "10 0 6 13 2 15 4 17 23 7",
    ),
    0.2: (
        [300, 287, 1011, 466, 195],
        27,
        1797,
        "0374a527d7a6",
        "2 10 3 1 8 4 18 0 12 5",
    ),
    0.5: (
        [967, 702, 650, 1086, 358],
        125,
        1358,
        "9fed060cd423",
        "4 2 9 18 12 3 6 0 5 30",
    ),
    1.0: (
        [655, 713, 637, 547, 674],
        228,
        953,
        "54edf09feede",
        "29 5 12 16 3 4 1 0 18 19",
    ),
    0.05: (
        [100, 633, 47, 164, 852],
        13,
        3646,
        "3f2a03e1a1f4",
        "9 8 14 24 5 4 22 30 6 10",
    ),
}
# 7,532 draws take a minute.
SLOW = pytest.param(0.05, marks=pytest.mark.acceptance)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, SLOW])
def test_the_seed_365_gives_the_deal_and_the_first_cohort_of_the_authors(
    alpha: float, real_data: Path
) -> None:
    sizes, least, most, digest, first = KNOWN[alpha]
    labels = FashionMnist().load().train.y
    partition = FedLabDirichlet(alpha=alpha, legacy_seed=365)
    parts = partition.spread(SamplesToSpread(labels, 10), 100, np.random.default_rng(0))
    assert [len(part) for part in parts[:5]] == sizes
    assert (min(map(len, parts)), max(map(len, parts))) == (least, most)
    flat = np.concatenate(parts).astype(np.int64)
    assert hashlib.sha256(flat.tobytes()).hexdigest()[:12] == digest
    legacy = np.random.RandomState(365)
    if alpha != 0.05:
        partition.deal(labels, 10, 100, legacy)
        assert cohort("Beta", legacy) == [int(i) for i in first.split()]


@pytest.mark.parametrize("capped", [True, False])
def test_every_sample_is_dealt_once_and_no_client_is_smaller_than_asked(
    capped: bool,
) -> None:
    labels = np.repeat(np.arange(5), 200)
    partition = FedLabDirichlet(alpha=0.3, capped=capped, min_samples=4)
    parts = partition.spread(SamplesToSpread(labels, 5), 20, Key(3)("partition"))
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert min(map(len, parts)) >= 4
    other = partition.spread(SamplesToSpread(labels, 5), 20, Key(4)("partition"))
    assert [len(part) for part in parts] != [len(part) for part in other]


def test_without_a_cap_the_share_of_each_class_is_dirichlets() -> None:
    labels = np.repeat(np.arange(2), 5000)
    partition = FedLabDirichlet(alpha=0.5, capped=False, min_samples=1)
    first, second = [], []
    for seed in range(300):
        parts = partition.spread(SamplesToSpread(labels, 2), 4, Key(seed)("partition"))
        share = np.array([np.bincount(labels[part], minlength=2) for part in parts])
        first += (share[:, 0] / 5000).tolist()
        second += (share[:, 1] / 5000).tolist()
    # Of four clients at alpha = 0.5 a share has the variance (1/4) (3/4) / 3.
    assert np.var(first) == pytest.approx(1 / 16, rel=0.1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_a_deal_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedlab, "TRIES", 100)
    samples = SamplesToSpread(np.arange(100) % 2, 2)
    for fields, told in (
        ({"alpha": 0.1, "min_samples": 25}, "raise alpha, or lower min_samples"),
        ({"alpha": 1.0, "min_samples": 26}, "= 26 each need 104 training samples"),
        ({"alpha": 1e-6}, "alpha = 1e-06 is too small for NumPy's legacy generator"),
    ):
        with pytest.raises(ValueError, match=told):
            FedLabDirichlet(**fields).spread(samples, 4, Key(0)("partition"))
