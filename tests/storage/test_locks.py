"""Locks of object stores, as far as they need no store."""

import pwd
import tempfile
from pathlib import Path

import pytest

from raysafl.storage import locks
from raysafl.storage.locks import RemoteLock
from raysafl.storage.paths import Remote


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_user_without_a_name_has_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    # In a container the id of the user may be in no list of users.
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    assert not RemoteLock(Remote("s3://bucket", "bucket/.lock"))._machine_lock.is_locked


def test_an_id_that_was_not_written_is_written_later(tmp_path: Path) -> None:
    locks._machine_id.cache_clear()
    (locks._folder() / "machine").touch()
    first = locks._machine_id()
    locks._machine_id.cache_clear()
    assert first and locks._machine_id() == first
    locks._machine_id.cache_clear()
