"""Ledger entries: what is stored, and what is read again."""

import json
from pathlib import Path

import pytest

from raysafl.storage.journal import Journal
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.sealed import OpenState, sealed, unsealed


def stored(journal: Journal) -> dict[str, object]:
    """The JSON of the only entry in the folder."""
    (file,) = journal.path.glob("ledger/*.jsonl")
    _, line = file.read_bytes().splitlines()
    fields: dict[str, object] = json.loads(unsealed(line))
    return fields


def planted(journal: Journal, text: str) -> None:
    """Write the entry of run `a`, after the fields that say whose it is."""
    journal.commit_end("a", LedgerEntry(status=Status.FAILED))
    (file,) = journal.path.glob("ledger/*.jsonl")
    head, _ = file.read_bytes().splitlines()
    line = sealed({"run_id": "a", **json.loads(text)})
    file.write_bytes(head + b"\n" + line + b"\n")


def test_a_status_says_whether_another_attempt_is_made_and_whether_something_went_wrong() -> (
    None
):
    assert {status.value: (status.decided, status.bad) for status in Status} == {
        "finished": (True, False),
        "stopped": (True, False),
        "diverged": (True, True),
        "failed": (False, True),
        "damaged": (False, True),
        "running": (False, False),
        "interrupted": (False, False),
    }


def test_an_entry_is_stored_as_plain_json_in_the_order_of_its_fields(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    ends = [ReplicateEnd(replicate=0, status=Status.DIVERGED, reason="round 3")]
    entry = LedgerEntry.now(
        {"seed": 1},
        Status.DIVERGED,
        "round 3",
        replicates=ends,
        seconds=2.5,
        host="box",
    )
    journal.commit_end("a", entry)
    fields = stored(journal)
    assert fields.pop("ended") == entry.ended
    assert list(fields.items()) == [
        ("run_id", "a"),
        ("status", "diverged"),
        ("reason", "round 3"),
        ("config", {"seed": 1}),
        ("replicates", [{"replicate": 0, "status": "diverged", "reason": "round 3"}]),
        ("seconds", 2.5),
        ("sums", {}),
        ("host", "box"),
    ]
    assert journal.ledger() == {"a": entry.model_copy(update={"sums": {}})}


def test_fields_that_are_not_known_survive_and_missing_ones_are_not_added(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    text = '{"status": "finished", "cluster": {"nodes": 2}, "replicates": [{"replicate": 1, '
    text += '"status": "finished", "reason": "", "note": "x"}]}'
    planted(journal, text)
    entry = journal.ledger()["a"]
    assert (entry.reason, entry.seconds, entry.seeds.replicates) == ("", None, 1)
    journal.forget({"b"})
    journal.rewrite({commit.name for commit in journal.commits()})
    assert stored(journal) == {"run_id": "a", **json.loads(text)}


def test_a_reason_with_a_secret_is_stored_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    entry = LedgerEntry.now(None, Status.FAILED, "hunter2hunter2 is not allowed")
    assert entry.reason == "*** is not allowed" and entry.config == {}


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"status": "ended"}',
        '{"status": "finished", "config": {"replicates": -1}}',
        '{"status": "finished", "seconds": NaN}',
        '{"status": "finished", "reason": "\\ud800"}',
    ],
)
def test_what_is_no_entry_is_left_out_by_name(text: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    planted(journal, text)
    with pytest.warns(UserWarning, match="the ledger entry of run a in commit"):
        assert journal.ledger() == {}


def test_a_run_that_is_ended_from_outside_keeps_the_time_that_it_had_saved(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    about = {"started": "2026-01-02T03:04:05+00:00", "spent": 12.5}
    nothing = ROUNDS.empty_table(), CLIENTS.empty_table()
    journal.flush("a", OpenState(about, *nothing, b"state"))
    journal.commit_end("a", LedgerEntry.now({}, Status.STOPPED, "stopped by a rule"))
    entry = journal.read().ledger["a"]
    assert (entry.started, entry.seconds) == ("2026-01-02T03:04:05+00:00", 12.5)


def test_rounds_that_are_not_over_are_not_told_as_over() -> None:
    about = {"config": {"rounds": 60, "replicates": 10}, "rounds_over": 597}
    entry = LedgerEntry.unended(about, Status.RUNNING)
    assert entry.reason == "after 59 of 60 rounds"
