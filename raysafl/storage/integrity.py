"""Whether a run's rows are those that it wrote: counts and digests of rows.

The ledger entry of a run that has ended holds, for each replicate, how many rows it
wrote and the digest of these rows: the sum modulo 2^64 of a 64-bit hash of each row.
Sums can be added up, so the digest of a run follows from those of its intervals,
whatever the order of its rows and the files they lie in.

The digest reveals damage: rows that were lost, doubled, exchanged or edited by mistake.
It is no protection against forgery, as whoever edits a row can compute it anew.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raysafl.storage.ledger import LedgerEntry, Status

Hashes = NDArray[np.uint64]
# The odd number by which the position of a list's element is multiplied.
STEP = np.uint64(0x9E3779B97F4A7C15)
# Replicate, seed and round of each row.
Keys = NDArray[np.int64]


@dataclass(frozen=True)
class RowSum:
    """How many rows there are, and their digest. Sums of disjoint rows can be added.

    Example:
        >>> RowSum(2, "ffffffffffffffff") + RowSum(1, "0000000000000003")
        RowSum(rows=3, digest='0000000000000002')

    Args:
        rows: the number of rows.
        digest: the sum modulo 2^64 of the rows' hashes, as 16 hexadecimal digits.
    """

    rows: int = 0
    digest: str = "0" * 16

    def __add__(self, other: "RowSum") -> "RowSum":
        total = (int(self.digest, 16) + int(other.digest, 16)) % 2**64
        return RowSum(self.rows + other.rows, f"{total:016x}")


@dataclass(frozen=True)
class Plan:
    """The part of a run's configuration that says which rows the run has.

    Args:
        rounds: the number of rounds.
        eval_every: the number of rounds from one evaluation to the next.
        replicates: the number of replicates.
        seed: the seed of replicate 0; replicate r has `seed + r`.
    """

    rounds: int
    eval_every: int
    replicates: int
    seed: int

    @classmethod
    def of(cls, entry: LedgerEntry) -> Self | None:
        """Return the plan of an ended run; None if its configuration does not say."""
        rounds = entry.config.get("rounds")
        every = entry.config.get("eval_every", 1)
        if not (isinstance(rounds, int) and isinstance(every, int)):
            return None
        seeds = entry.seeds
        plan = cls(rounds, every, seeds.replicates, seeds.seed)
        return plan if rounds > 0 and every > 0 else None


def row_sums(rows: pa.Table) -> dict[str, dict[int, RowSum]]:
    """Count and digest rows, by run id and replicate."""
    names = pc.dictionary_encode(rows["run_id"].combine_chunks())
    numbers = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    replicates = rows["replicate"].to_numpy().astype(np.int64)
    groups, of_row = np.unique(
        np.stack([numbers, replicates], axis=1), axis=0, return_inverse=True
    )
    of_row = of_row.reshape(-1)
    counts = np.bincount(of_row, minlength=len(groups))
    digests = np.zeros(len(groups), np.uint64)
    np.add.at(digests, of_row, row_hashes(rows))

    found: dict[str, dict[int, RowSum]] = {}
    for (number, replicate), count, digest in zip(groups, counts, digests, strict=True):
        run_id = names.dictionary[int(number)].as_py()
        own = found.setdefault(run_id, {})
        own[int(replicate)] = RowSum(int(count), f"{int(digest):016x}")
    return found


def row_hashes(rows: pa.Table) -> Hashes:
    """Return a 64-bit hash of each row, which depends on all of its columns.

    A missing value adds nothing to a row's hash. So a column that is added to the rows
    some day leaves the hashes of the rows before it as they are.
    """
    total = np.zeros(len(rows), np.uint64)
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        if pa.types.is_floating(column.type):
            # Readers do not tell NaN from a missing value, so neither do hashes.
            column = pc.if_else(pc.is_nan(column), None, column)
        there = pc.is_valid(column).to_numpy(zero_copy_only=False)
        salt = _text_hash(name)
        total += np.where(there, _mixed(_bits(column) ^ salt), np.uint64(0))
    return _mixed(total)


def _bits(column: pa.Array) -> Hashes:
    """Return 64 bits for each value of a column; any bits where a value is missing."""
    if pa.types.is_list(column.type):
        return _list_bits(column)
    if pa.types.is_string(column.type):
        texts = pc.dictionary_encode(pc.fill_null(column, ""))
        known = [_text_hash(text) for text in texts.dictionary.to_pylist()]
        hashes: Hashes = np.array(known, np.uint64).take(texts.indices.to_numpy())
        return hashes
    plain = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    wide = np.float64 if pa.types.is_floating(column.type) else np.int64
    return np.ascontiguousarray(plain, dtype=wide).view(np.uint64)


def _list_bits(column: pa.Array) -> Hashes:
    """Return 64 bits for each list, which depend on its elements and their order."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False).astype(np.int64))
    starts = np.concatenate([[0], ends])[:-1]
    values = column.flatten()
    if pa.types.is_floating(values.type):
        # Readers do not tell NaN from a missing value, and NaN has several bit patterns.
        values = pc.fill_null(values, math.nan)
        values = pc.if_else(pc.is_nan(values), math.nan, values)
    positions = np.arange(len(values)) - np.repeat(starts, ends - starts)
    hashes = _mixed(_bits(values) ^ (positions.astype(np.uint64) * STEP))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    found: Hashes = sums[ends] - sums[starts] + (ends - starts).astype(np.uint64)
    return found


def _text_hash(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def _mixed(bits: Hashes) -> Hashes:
    """Mix bits so that each depends on all of them (the last step of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def faults(ledger: Mapping[str, LedgerEntry], rows: pa.Table) -> dict[str, str]:
    """Return the ended runs whose entry and rows do not belong together, and why.

    The rows of a run that failed are not checked, as it is run again in any case. An
    entry without digests was written by an earlier version of raysafl. Its rows must
    then be those that the run's configuration demands.

    Args:
        ledger: the entries of the runs to check, by run id.
        rows: the rows of these runs at least.
    """
    found = row_sums(rows)
    plain = [i for i, entry in ledger.items() if not _has_digests(entry)]
    keys = _keys_by_run(rows, plain)
    wrong = {}
    for run_id, entry in ledger.items():
        if not entry.status.decided:
            continue
        if not _has_id(run_id, entry):
            wrong[run_id] = "its ledger entry has the configuration of another run"
        elif run_id in keys:
            wrong[run_id] = _gap_by_configuration(entry, keys[run_id])
        else:
            sums = {
                e.replicate: RowSum(e.rows or 0, e.digest) for e in entry.replicates
            }
            wrong[run_id] = difference(sums, found.get(run_id, {}))
    return {run_id: why for run_id, why in wrong.items() if why}


def _has_id(run_id: str, entry: LedgerEntry) -> bool:
    """Whether an entry has the configuration of this run: an id is a hash of its JSON.

    An entry that was written by hand may have any configuration, but it has no digests.
    """
    if "kind" not in entry.config and not _has_digests(entry):
        return True
    text = json.dumps(entry.config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest().startswith(run_id)


def _has_digests(entry: LedgerEntry) -> bool:
    return bool(entry.replicates) and all(end.digest for end in entry.replicates)


def _keys_by_run(rows: pa.Table, run_ids: Sequence[str]) -> dict[str, Keys]:
    """Return the keys of the rows of each of some runs, which may have no rows."""
    rows = rows.filter(pc.is_in(rows["run_id"], pa.array(run_ids, pa.string())))
    rows = rows.sort_by("run_id")
    names, firsts = np.unique(
        np.array(rows["run_id"].to_pylist(), str), return_index=True
    )
    groups = np.split(keys_of(rows), firsts[1:])
    nothing = dict.fromkeys(run_ids, keys_of(rows[:0]))
    return nothing | dict(zip(names.tolist(), groups, strict=False))


def keys_of(rows: pa.Table) -> Keys:
    """Return replicate, seed and round of each row, as the columns of an array."""
    columns = [rows[name].to_numpy() for name in ("replicate", "seed", "round")]
    return np.stack(columns, axis=1).astype(np.int64)


def difference(written: Mapping[int, RowSum], found: Mapping[int, RowSum]) -> str:
    """Say how the rows found differ from those that were written; empty if they do not.

    Args:
        written: for each replicate, the sum of the rows that were written.
        found: the sum of those that are there.
    """
    for replicate in sorted(written.keys() | found.keys()):
        due = written.get(replicate, RowSum())
        there = found.get(replicate, RowSum())
        if there.rows != due.rows:
            return f"replicate {replicate} has {there.rows} rows instead of {due.rows}"
        if there.digest != due.digest:
            return f"the rows of replicate {replicate} are not those that it wrote"
    return ""


def _gap_by_configuration(entry: LedgerEntry, keys: Keys) -> str:
    """Say which rows are missing or too many, as far as the configuration tells."""
    plan = Plan.of(entry)
    if plan is None:
        return ""
    # With patience, a replicate may be finished after any evaluated round.
    if entry.config.get("stop"):
        return gap(plan, keys, plan.rounds, [])
    status = {end.replicate: end.status for end in entry.replicates}
    whole = [
        r
        for r in range(plan.replicates)
        if status.get(r, entry.status) is Status.FINISHED
    ]
    return gap(plan, keys, plan.rounds, whole)


def gap(plan: Plan, keys: Keys, through: int, whole: Iterable[int]) -> str:
    """Say which rows of a run are missing or too many; empty if none is.

    Args:
        plan: which rows the run has.
        keys: replicate, seed and round of each row that is there.
        through: how many rounds were run.
        whole: the replicates that took part in all of these rounds. Those of others
            must have the rows of the first of them.
    """
    odd = _strange_row(plan, keys, through)
    if odd:
        return odd
    due = through // plan.eval_every
    due += through == plan.rounds and through % plan.eval_every > 0
    complete = set(whole)
    counts = np.bincount(keys[:, 0], minlength=plan.replicates)
    run_rounds = np.zeros(plan.replicates, np.int64)
    np.maximum.at(run_rounds, keys[:, 0], keys[:, 2] + 1)
    least = -(-run_rounds // plan.eval_every)
    for replicate in range(plan.replicates):
        wanted = due if replicate in complete else least[replicate]
        if counts[replicate] != wanted:
            return f"replicate {replicate} has {counts[replicate]} rows instead of {wanted}"
    return ""


def _strange_row(plan: Plan, keys: Keys, through: int) -> str:
    """Name a row that the run cannot have, or that is there twice."""
    replicates, seeds, rounds = keys.T
    ends = rounds + 1
    evaluated = (ends % plan.eval_every == 0) | (ends == plan.rounds)
    _, firsts = np.unique(keys, axis=0, return_index=True)
    twice = np.ones(len(keys), bool)
    twice[firsts] = False
    checks = {
        "of a replicate that it has not": (replicates < 0)
        | (replicates >= plan.replicates),
        "with a wrong seed": seeds != plan.seed + replicates,
        "of a round that it has not": (rounds < 0) | (ends > through) | ~evaluated,
        "that is there twice": twice,
    }
    for what, wrong in checks.items():
        if wrong.any():
            replicate, seed, round = keys[np.flatnonzero(wrong)[0]]
            where = f"replicate {replicate}, seed {seed}, round {round}"
            return f"there is a row {what}: {where}"
    return ""
