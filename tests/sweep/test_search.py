"""Search algorithms of Tune's: what they are asked for and told, and by what they go."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.sweeps_here import Halving, search
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher

from raysafl import Run, Sweep
from raysafl.sweep.grid import draw
from raysafl.sweep.on_ray import sampler
from raysafl.sweep.outcome import Outcome
from raysafl.sweep.packs import Pack

SPACE = tune.uniform(0.01, 1)


def searched(base: Any, searcher: Any, number: int = 3) -> Sweep:
    return Sweep(
        "searched",
        space={"local.lr": SPACE},
        base=base,
        num_samples=number,
        search_alg=searcher,
    )


def rates(outcome: Outcome) -> set[float]:
    return set(outcome.runs["label.local.lr"])


def test_a_search_algorithm_is_told_every_result_also_at_later_attempts(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has ended keeps its rows though its data cannot be loaded any more."""
    searcher = Halving()
    outcome, said = search(searched(tiny, searcher), tmp_path / "s")
    assert outcome.ok and "3 runs to do" in said
    assert rates(outcome) == {0.2, 0.1, 0.05}
    final = outcome.runs.groupby("label.local.lr").final.mean()
    told = [pytest.approx(final[lr]) for lr in (0.2, 0.1, 0.05)]
    assert list(searcher.told.values()) == told and list(searcher.space) == ["local.lr"]

    again, _ = search(searched(tiny, second := Halving()), tmp_path / "s")
    assert list(second.told.values()) == list(searcher.told.values())

    def lost(run: Run, datasets: object) -> None:
        raise ValueError("the data are gone")

    with monkeypatch.context() as patch:
        patch.setattr(sampler, "dataset_of", lost)
        again, _ = search(searched(tiny, Halving()), tmp_path / "s")
    assert again.ok
    pd.testing.assert_frame_equal(again.store.rounds(), outcome.store.rounds())

    # As if this one had not ended: another search does not ask for it again.
    (cut,) = (e for e in again.manifest.entries if e.labels["local.lr"] == 0.05)
    again.store.forget(cut.cells)
    other, _ = search(searched(tiny, Halving(0.5)), tmp_path / "s")
    assert rates(other) == {0.25, 0.125, 0.0625, 0.2, 0.1}
    assert len(other.manifest.entries) == 5

    anew, _ = search(searched(tiny, Halving(0.5)), tmp_path / "s", resume=False)
    labels = [entry.labels["local.lr"] for entry in anew.manifest.entries]
    assert labels == [0.25, 0.125, 0.0625] and anew.ok


@pytest.mark.parametrize(
    ("limited_to", "sizes", "asked"),
    [(None, [8, 1], [9, 1]), (3, [2, 3, 3, 1], [3, 3, 3, 1])],
)
def test_a_search_asks_for_several_runs_which_share_a_pack_and_tells_of_all_of_them(
    limited_to: int | None,
    sizes: list[int],
    asked: list[int],
    tiny: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one of them no run can be made, of which the algorithm hears."""
    searcher: Searcher = (halving := Halving())
    if limited_to:
        searcher = ConcurrencyLimiter(searcher, limited_to)
    formed: list[int] = []
    packs_of = sampler.packs_of

    def form(*args: Any) -> list[Pack]:
        packs = packs_of(*args)
        formed.extend(len(pack.runs) // tiny.replicates for pack in packs)
        return packs

    def make(config: dict[str, Any]) -> Run:
        if config["local.lr"] == 0.1:
            raise SystemExit("no such rate")
        return tiny.replace(config)

    monkeypatch.setattr(sampler, "packs_of", form)
    outcome, _ = search(searched(make, searcher, 10), tmp_path / "s")
    assert formed == sizes
    assert outcome.runs["run_id"].nunique() == 10
    before = [sum(asked[:i]) for i, size in enumerate(asked) for _ in range(size)]
    assert halving.told_before == before
    bad = outcome.runs[outcome.runs.status == "failed"]
    assert list(bad["label.local.lr"]) == [0.1] and "no such rate" in bad.reason.item()
    assert halving.failed == ["00001"] and len(halving.told) == 9


def test_a_search_is_refused_only_if_no_drawn_configuration_gives_a_run(
    tiny: Run, tmp_path: Path
) -> None:
    """One is drawn beforehand, for what is tried and estimated; it may be such a one."""
    refused = [config["local.lr"] for config in draw({"local.lr": SPACE}, 20)]

    def make(config: dict[str, Any]) -> Run:
        if config["local.lr"] in refused:
            raise SystemExit("no such rate")
        return tiny.replace(config)

    with pytest.raises(ValueError, match=r"no run can be made of {.*no such rate"):
        search(searched(make, Halving()), tmp_path / "s")
    assert not (tmp_path / "s").exists()
    del refused[-1]
    outcome, _ = search(searched(make, Halving()), tmp_path / "s")
    assert outcome.ok and outcome.runs["run_id"].nunique() == 3
