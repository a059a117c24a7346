"""Whether a run's rows are those that it wrote: counts and digests of rows.

The ledger entry of a run holds, for each table and each replicate, how many rows it
wrote and the digest of these rows: the sum modulo 2^64 of a 64-bit hash of each row. So
it depends neither on the order of the rows nor on the files that they lie in.

The digest reveals damage: rows that were lost, doubled, exchanged or edited by mistake.
It is no protection against forgery, as whoever edits a row can compute it anew.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
# The odd number by which the position of a list's element is multiplied.
STEP = np.uint64(0x9E3779B97F4A7C15)


class RowSum(NamedTuple):
    """How many rows there are, and their digest.

    Args:
        rows: the number of rows.
        digest: the sum modulo 2^64 of the rows' hashes, as 16 hexadecimal digits.
    """

    rows: int = 0
    digest: str = "0" * 16


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
    zero = pa.scalar(0).cast(column.type)
    plain = pc.fill_null(column, zero).to_numpy(zero_copy_only=False)
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


def difference(
    written: Mapping[int, RowSum], found: Mapping[int, RowSum], table: str = "rounds"
) -> str:
    """Say how the rows found differ from those that were written; empty if they do not.

    Args:
        written: for each replicate, the sum of the rows that were written.
        found: the sum of those that are there.
        table: the table that they are rows of, by the name of its folder.
    """
    where = "" if table == "rounds" else f" in {table}/"
    for replicate in sorted(written.keys() | found.keys()):
        due = written.get(replicate, RowSum())
        there = found.get(replicate, RowSum())
        if there.rows != due.rows:
            return f"replicate {replicate} has {there.rows} rows{where} instead of {due.rows}"
        if there.digest != due.digest:
            return (
                f"the rows of replicate {replicate}{where} are not those that it wrote"
            )
    return ""
