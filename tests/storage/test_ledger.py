"""Ledger entries: what is stored, and what is read again."""

import json

import pytest

from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status


def test_a_status_says_whether_another_attempt_is_made_and_whether_something_went_wrong() -> (
    None
):
    assert {status.value: (status.decided, status.bad) for status in Status} == {
        "finished": (True, False),
        "stopped": (True, False),
        "diverged": (True, True),
        "failed": (False, True),
        "damaged": (False, True),
    }


def test_an_entry_is_stored_as_plain_json_in_the_order_of_its_fields() -> None:
    ends = [ReplicateEnd(replicate=0, status=Status.DIVERGED, reason="round 3")]
    entry = LedgerEntry.now(
        {"seed": 1},
        Status.DIVERGED,
        "round 3",
        replicates=ends,
        seconds=2.5,
        host="box",
    )
    stored = json.loads(entry.to_json())
    assert stored.pop("ended") == entry.ended
    assert list(stored.items()) == [
        ("status", "diverged"),
        ("reason", "round 3"),
        ("config", {"seed": 1}),
        ("replicates", [{"replicate": 0, "status": "diverged", "reason": "round 3"}]),
        ("seconds", 2.5),
        ("host", "box"),
    ]
    assert LedgerEntry.from_json(entry.to_json()) == entry


def test_fields_that_are_not_known_survive_and_missing_ones_are_not_added() -> None:
    text = '{"status": "finished", "cluster": {"nodes": 2}, "replicates": [{"replicate": 1, '
    text += '"status": "finished", "reason": "", "note": "x"}]}'
    entry = LedgerEntry.from_json(text)
    assert (entry.reason, entry.seconds, entry.seeds.replicates) == ("", None, 1)
    assert json.loads(entry.to_json()) == json.loads(text)


def test_a_reason_with_credentials_is_stored_without_them() -> None:
    entry = LedgerEntry.now(
        None, Status.FAILED, "no answer of s3://key:secret@bucket/x"
    )
    assert entry.reason == "no answer of s3://bucket/x" and entry.config == {}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"status": "ended"}',
        '{"status": "finished", "config": {"replicates": -1}}',
        '{"status": "finished", "seconds": NaN}',
        '{"status": "finished", "reason": "\\ud800"}',
    ],
)
def test_what_is_no_entry_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        LedgerEntry.from_json(text)
