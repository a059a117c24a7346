"""Machines of a cluster that cannot take part in a sweep."""

from dataclasses import replace
from pathlib import Path

import pytest

from raysafl import Run
from raysafl.storage.paths import StorageError
from raysafl.storage.store import Store
from raysafl.sweep import driver as drivers
from raysafl.sweep.driver import announced
from raysafl.sweep.open_pack import Hosted, OpenPack, Terms
from raysafl.sweep.packs import Pack
from raysafl.sweep.session import is_interrupt


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "PATIENCE_SECONDS", -1.0)


def test_a_machine_that_sees_the_folder_and_has_the_same_raysafl_takes_part(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "s")
    store.create()
    with announced(store) as driver:
        driver.check()
    assert not list(tmp_path.rglob("*.driver"))


def test_a_pack_on_a_machine_that_does_not_see_the_folder_computes_and_writes_nothing(
    tiny: Run, tmp_path: Path
) -> None:
    def host(runs: object) -> Hosted:
        raise AssertionError("no client may be hosted")

    store = Store(tmp_path / "shared")
    store.create()
    # The same path on a machine that does not share the folder.
    unshared = tmp_path / "unshared"
    with announced(store) as driver:
        assert not isinstance(driver.file, str)
        elsewhere = replace(driver, file=unshared / "tune" / driver.file.name)
        terms = Terms(unshared, commit="", report_seconds=0.0, driver=elsewhere)
        pack = OpenPack(Pack((tiny,)), {tiny.id: {}}, terms, host, is_interrupt)
        news = pack.advance()
    assert news.done and f"does not see the folder {unshared} of" in news.lost
    assert "Give a folder (--out) that all machines see" in news.lost
    assert not unshared.exists()


def test_a_machine_with_another_raysafl_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.create()
    with announced(store) as driver:
        other = replace(driver, host="head", package="0" * 64)
        with pytest.raises(StorageError, match=r"has another raysafl than head"):
            other.check()
