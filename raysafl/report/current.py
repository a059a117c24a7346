"""Whether the report of a sweep shows what its folder holds."""

import hashlib

from raysafl.storage.store import Store

PAGE = "report.html"


def is_current(store: Store) -> bool:
    """Return whether the report is there and shows the present manifest and runs."""
    written = store.file(PAGE)
    if not written.is_file() or not store.file("table.md").is_file():
        return False
    return written.read_bytes().endswith(page_end(store))


def page_end(store: Store) -> bytes:
    """Return the end of a page that is made from the present files.

    It is a comment with a digest of the manifest, of the ledger, which names the rows, and of
    `runs.parquet`, which holds their statistics.
    """
    digest = hashlib.sha256()
    for name in ("manifest.json", "ledger.jsonl", "runs.parquet"):
        file = store.file(name)
        digest.update(file.read_bytes() if file.is_file() else b"")
    return f"\n<!-- made from {digest.hexdigest()} -->\n".encode()
