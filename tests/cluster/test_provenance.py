"""What is said of the software that makes a run."""

from pathlib import Path

import pytest

from raysafl.cluster import provenance


def test_a_git_that_takes_too_long_names_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 0123456789ab\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(provenance, "GIT_SECONDS", 0.05)
    assert provenance.commit(tmp_path) == ""
