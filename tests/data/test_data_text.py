"""Shakespeare, on a small play and the real text; Synthetic, by its definition."""

from pathlib import Path

import numpy as np
import pytest
from helpers.environment import REAL_DATA

from raysafl import Federation
from raysafl.data import ByUser, Dataset, Samples, Shakespeare, Synthetic
from raysafl.data.users import speeches

PLAY = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak, speak.

first citizen is no head:
so this goes on with what All say.

FIRST  CITIZEN:
You are all resolved rather to die than to famish?
Mark me:

MARIANA:

Soft.
"""


def sentences(part: Samples, names: tuple[str, ...]) -> list[str]:
    """Each sample as text: its characters and the one that follows."""
    return [
        "".join(names[c] for c in [*x, y])
        for x, y in zip(part.x.tolist(), part.y.tolist(), strict=True)
    ]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    (tmp_path / "play.txt").write_text(PLAY)
    return tmp_path / "play.txt"


def test_speeches_are_joined_by_speaker_whatever_the_case() -> None:
    assert speeches(PLAY) == {
        "FIRST CITIZEN": "Before we proceed any further, hear me speak.\n"
        "You are all resolved rather to die than to famish?\nMark me:",
        "ALL": "Speak, speak.\nfirst citizen is no head:\nso this goes on with what All say.",
        "MARIANA": "Soft.",
    }


@pytest.mark.parametrize("stride", [1, 3])
def test_samples_are_windows_of_one_speakers_text_and_what_follows(
    play: Path, stride: int
) -> None:
    dataset = Shakespeare(speakers=2, length=5, stride=stride, file="play.txt").load()
    assert dataset.names == tuple(sorted(set(PLAY)))
    assert dataset.num_classes == len(set(PLAY))
    for part in (dataset.train, dataset.test):
        assert part.x.dtype == part.y.dtype == np.int64
        assert part.x.shape == (len(part), 5)
        assert (part.scale, part.shift) == (1.0, 0.0)
    # in the order of entrance; Mariana says too little
    said = list(speeches(PLAY).values())[:2]
    wanted: list[list[str]] = [[], []]
    for words in said:
        cut = len(words) - int(0.2 * len(words))
        for found, piece in zip(wanted, (words[:cut], words[cut:]), strict=True):
            found += [piece[i : i + 6] for i in range(0, len(piece) - 5, stride)]
    assert sentences(dataset.train, dataset.names) == wanted[0]
    assert sentences(dataset.test, dataset.names) == wanted[1]
    users = dataset.train.users
    assert users is not None and set(users) == {0, 1} and (np.diff(users) >= 0).all()
    for words, user in zip(said, (0, 1), strict=True):
        own = np.array(sentences(dataset.train, dataset.names))[users == user]
        assert all(text in words for text in own.tolist())


def test_a_missing_or_unreadable_text_is_named(play: Path) -> None:
    with pytest.raises(ValueError, match=r"shakespeare/input.txt is missing: a play"):
        Shakespeare().load()
    play.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="'utf-8' codec can't decode"):
        Shakespeare(file="play.txt").load()


@pytest.fixture(scope="module")
def real() -> Dataset | None:
    if REAL_DATA is None or not (Path(REAL_DATA) / "shakespeare").is_dir():
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSAFL_DATA", REAL_DATA)
        return Shakespeare().load()


def test_the_real_text_has_fasts_139_speakers(
    real: Dataset | None, real_data: Path
) -> None:
    if real is None:
        pytest.skip("the text (RAYSAFL_DATA/shakespeare) is not here")
    assert real.train.users is not None
    parts = Federation(clients=139, partition=ByUser()).split(real, 0).clients
    assert len(parts) == 139 and sum(map(len, parts)) == len(real.train)
    assert set(real.train.users) == set(range(139)) and min(map(len, parts)) > 50
    with pytest.raises(ValueError, match="292 speakers, 192 of them with enough text"):
        Shakespeare(speakers=193).load()  # 139 are there, and not many more


# --- synthetic


def test_synthetic_has_its_published_form() -> None:
    dataset = Synthetic(users=30).load()
    train, test = dataset.train, dataset.test
    assert train.x.shape[1:] == (60,) and train.x.dtype == np.float32
    assert dataset.num_classes == 10
    assert train.users is not None and test.users is not None
    sizes = np.bincount(train.users) + np.bincount(test.users)
    assert sizes.min() >= 50
    assert (np.bincount(train.users) == (0.9 * sizes).astype(int)).all()
    assert 0 <= train.y.min() and train.y.max() <= 9


def test_synthetic_sizes_are_fifty_and_a_lognormal() -> None:
    dataset = Synthetic(users=400).load()
    assert dataset.train.users is not None and dataset.test.users is not None
    sizes = np.bincount(dataset.train.users) + np.bincount(dataset.test.users)
    logs = np.log(sizes[sizes > 55] - 49.5)
    assert abs(np.median(sizes - 50) - np.exp(4)) < 25
    assert np.percentile(logs, 84) == pytest.approx(6, abs=0.5)


def of_user(part: Samples, user: int) -> np.ndarray:
    assert part.users is not None
    rows: np.ndarray = part.x[part.users == user]
    return rows


def test_inputs_have_the_covariance_j_to_the_minus_1_2() -> None:
    dataset = Synthetic(users=60).load()
    assert dataset.train.users is not None
    largest = int(np.bincount(dataset.train.users).argmax())
    rows = of_user(dataset.train, largest)
    assert len(rows) > 1000
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(
        rows.var(axis=0), expected, rtol=6 * np.sqrt(2 / len(rows))
    )
    between = np.corrcoef(rows.T)[np.triu_indices(60, 1)]
    assert np.abs(between).max() < 6 / np.sqrt(len(rows))


def test_beta_is_the_deviation_of_the_users_means() -> None:
    def centre(beta: float) -> float:
        dataset = Synthetic(alpha=0, beta=beta, users=300).load()
        return float(np.std([of_user(dataset.train, u).mean() for u in range(300)]))

    # the mean over 60 dimensions of v ~ N(B, 1): variance beta^2 + 1/60 (and the
    # samples' own)
    for beta in (0.0, 1.0, 3.0):
        assert centre(beta) == pytest.approx(np.sqrt(beta**2 + 1 / 60), rel=0.15)


def test_a_users_labels_are_linear_in_its_inputs() -> None:
    """Two classes of argmax(W x + b) are parted by a plane; the same samples shuffled are not."""
    from sklearn.linear_model import LogisticRegression

    train = Synthetic(users=60).load().train
    assert train.users is not None
    counts = np.array(
        [np.bincount(train.y[train.users == u], minlength=10) for u in range(60)]
    )
    user = int(np.sort(counts, axis=1)[:, -2].argmax())  # whose second class is largest
    n = min(150, int(np.sort(counts[user])[-2]))
    assert n == 150
    own = [
        np.flatnonzero((train.users == user) & (train.y == c))[:n]
        for c in np.argsort(counts[user])[-2:]
    ]
    x, y = train.x[np.concatenate(own)], np.repeat([0, 1], n)
    model = LogisticRegression(C=100, max_iter=10_000)
    shuffled = np.random.default_rng(0).permutation(y)
    assert model.fit(x, y).score(x, y) > 0.99
    assert model.fit(x, shuffled).score(x, shuffled) < 0.9


def test_alpha_changes_no_sample_as_it_shifts_all_outputs_of_a_user_alike() -> None:
    none, much = (Synthetic(alpha=alpha, users=20).load() for alpha in (0, 5))
    for one, other in ((none.train, much.train), (none.test, much.test)):
        assert np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)
