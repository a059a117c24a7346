"""Whose code a file is, where packages lie among the user's own files."""

from pathlib import Path

import pytest

from raysafl.core.users_code import is_users_file


def test_beside_what_is_installed_into_a_folder_of_any_name_a_users_files_are_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "taken-1.0.dist-info"
    records.mkdir()
    (records / "RECORD").write_text(
        "taken/__init__.py,sha256=abc,12\nalone.py,,\n../../bin/taken,,\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    files = ("taken/deep/in.py", "alone.py", "mine.py", "own/taken.py", "own/alone.py")
    theirs = [is_users_file(str(tmp_path / file)) for file in files]
    assert theirs == [False, False, True, True, True]
