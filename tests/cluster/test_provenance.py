"""What is said of the software that makes a run."""

import shutil
import subprocess
from pathlib import Path

import pytest

from raysafl.cluster import provenance


def test_a_commit_has_twelve_digits_and_says_if_files_were_changed(
    tmp_path: Path,
) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@b.org")
        command = ["git", *who, *arguments]
        return subprocess.check_output(command, cwd=tmp_path, text=True).strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD")[:12]
    assert provenance.commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert provenance.commit(tmp_path) == f"{head}-dirty"


def test_the_digest_of_the_package_changes_with_any_of_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "raysafl"
    shutil.copytree(Path(provenance.__file__).parents[1], copy)
    monkeypatch.setattr(provenance, "__file__", str(copy / "cluster" / "provenance.py"))
    digest = provenance.package_digest.__wrapped__
    assert digest() == provenance.package_digest()
    with (copy / "algorithms" / "safari.py").open("a") as source:
        source.write("# more\n")
    assert digest() != provenance.package_digest()


def test_a_git_that_takes_too_long_names_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 0123456789ab\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(provenance, "GIT_SECONDS", 0.05)
    assert provenance.commit(tmp_path) == ""
