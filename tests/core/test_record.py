"""The columns of the rows are listed once, in `Record`, and everything else follows."""

from pathlib import Path

from raysafl.core.record import COLUMNS, Record, Summary, columns_with
from raysafl.storage.rows import ROUND_COLUMNS, ROUNDS
from raysafl.storage.statistics import STATISTICS
from raysafl.tracking import metrics

RESULTS = Path(__file__).parents[2] / "docs" / "results.md"


def test_the_parquet_schema_has_the_columns_and_types_of_a_record() -> None:
    apart = ("replicate", "metrics")
    fixed = [name for name in Record.__dataclass_fields__ if name not in apart]
    assert ROUNDS.names == ["cell", *fixed]
    types = {name: str(ROUNDS.field(name).type) for name in ROUNDS.names}
    assert types == {
        "cell": "string",
        "seed": "int64",
        "round": "int32",
        "kind": "string",
        "cohorts": "list<item: list<item: int32>>",
        "enforced": "list<item: bool>",
        "trained": "list<item: bool>",
        "test_accuracy": "double",
        "test_loss": "double",
        "train_accuracy": "double",
        "train_loss": "double",
        "enforce_prob": "double",
        "snapshots": "int32",
        "server_rounds": "int32",
        "steps": "int64",
        "bytes_down": "int64",
        "bytes_up": "int64",
        "seconds": "double",
    }


def test_levels_are_averaged_and_counts_are_summed() -> None:
    levels = "test_accuracy test_loss train_accuracy train_loss enforce_prob".split()
    counts = ["snapshots", "server_rounds", "steps", "bytes_down", "bytes_up"]
    assert (metrics.MEANS, metrics.SUMS) == (levels, counts)
    assert all(
        STATISTICS[f"total_{name}"].meaning == COLUMNS[name].total for name in counts
    )
    assert columns_with(Summary.KEY) == ["seed", "round"]


def test_the_table_in_the_documentation_lists_each_column() -> None:
    """To renew the table after a change of `Record`, copy the lines that this test expects."""
    lines = [
        f"| `{name}` | {c.type} | {c.meaning} |" for name, c in ROUND_COLUMNS.items()
    ]
    table = "\n".join(["| column | type | meaning |", "|---|---|---|", *lines])
    assert f"## `rounds/`\n\n{table}\n\n" in RESULTS.read_text()
