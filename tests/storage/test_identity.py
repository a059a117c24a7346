"""The identity of a sweep's folder, on a disk and in an object store."""

import shutil
from pathlib import Path

import pytest

from raysafl.storage.identity import Identity, identity, renewed
from raysafl.storage.paths import Remote
from raysafl.storage.store import Store


def made(path: Path) -> Store:
    store = Store(path)
    store.create()
    return store


def test_an_identity_is_drawn_once_and_its_file_stays_when_the_folder_is_renamed(
    tmp_path: Path,
) -> None:
    store = made(tmp_path / "s")
    first = identity(store)
    assert identity(store) == first and first != identity(made(tmp_path / "t"))
    shutil.move(store.path, tmp_path / "renamed")
    now = identity(Store(tmp_path / "renamed"))
    assert (now.id, now.file) == (first.id, first.file)
    assert now.place != first.place and now.place.endswith(f":{tmp_path / 'renamed'}")


def test_a_copy_has_the_id_of_the_original_but_another_place_and_file(
    tmp_path: Path,
) -> None:
    first = identity(made(tmp_path / "s"))
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    copy = identity(Store(tmp_path / "copy"))
    assert copy.id == first.id
    assert copy.place != first.place and copy.file != first.file
    assert renewed(Store(tmp_path / "copy")).id != first.id
    assert identity(Store(tmp_path / "s")) == first


@pytest.mark.parametrize("content", [b"", b"x" * 32, b"\xff", b"a" * 33])
def test_an_id_that_is_none_is_drawn_again(tmp_path: Path, content: bytes) -> None:
    store = made(tmp_path / "s")
    (store.path / ".folder").write_bytes(content)
    drawn = identity(store)
    assert drawn.id.encode() != content and identity(store) == drawn


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    store = made(tmp_path / "s")
    (tmp_path / "elsewhere").write_text("a" * 32)
    (store.path / ".folder").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link out of"):
        identity(store)


def test_a_folder_of_an_object_store_is_its_address_without_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: dict[str, bytes] = {}

    def read(file: Remote) -> bytes:
        if file.key not in kept:
            raise FileNotFoundError(file.key)
        return kept[file.key]

    def write(file: Remote, content: bytes) -> None:
        kept[file.key] = content

    monkeypatch.setattr(Remote, "read_bytes", read)
    monkeypatch.setattr(Remote, "write_bytes", write)
    store = Store(Remote("s3://key:secret@bucket/s", "bucket/s"))
    first = identity(store)
    assert first == Identity(first.id, "s3://bucket/s", "") == identity(store)
    assert list(kept) == ["bucket/s/.folder"]
