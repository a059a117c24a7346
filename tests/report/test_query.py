"""`raysafl results`, docs/query_results.md and docs/report.md, on a sweep that was really run."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from typer.testing import CliRunner

import raysafl as fl
from raysafl.cli import app as cli
from raysafl.report.query import results
from raysafl.storage.ledger import Status
from raysafl.storage.store import Store

DOCS = Path(__file__).parents[2] / "docs"
DOC, REPORT = (
    (DOCS / f"{name}.md").read_text() for name in ("query_results", "report")
)
QUESTIONS = DOC.split("## Ten questions", 1)[1]
SQL = re.findall(r"```sql\n(.*?)```", QUESTIONS, re.DOTALL)
FIRST, *PANDAS = re.findall(r"```python\n(.*?)```", QUESTIONS, re.DOTALL)
COMMANDS = re.findall(r"^raysafl results .*$", DOC, re.MULTILINE)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What `raysafl results ARGUMENTS` prints, which must succeed."""
    monkeypatch.setattr(sys, "argv", ["raysafl", "results", *arguments])
    with cli.console.capture() as said:
        result = CliRunner().invoke(
            cli.app, ["results", *arguments], catch_exceptions=False
        )
    assert result.exit_code == 0
    return result.output + said.get()


@pytest.fixture(scope="module")
def joined_results(
    real_results: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same sweep after its parts were put together."""
    folder = tmp_path_factory.mktemp("joined") / "results"
    shutil.copytree(real_results, folder)
    store = Store(folder / "quickstart")
    assert len(store.files("rounds")) == 8
    store.rewrite()
    assert len(store.files("rounds")) == 1
    return folder


# By default the questions are asked of the two forms of a folder in turn.
@pytest.mark.parametrize(
    ("number", "form"),
    [
        pytest.param(
            *(number, form), marks=[pytest.mark.acceptance] if (number + k) % 2 else []
        )
        for number in range(1, 11)
        for k, form in enumerate(["real_results", "joined_results"])
    ],
)
def test_each_question_of_the_docs_has_one_answer_in_sql_and_in_pandas(
    number: int,
    form: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(request.getfixturevalue(form).parent)
    assert len(SQL) == len(PANDAS) == 10 and f"### {number}. " in QUESTIONS
    names: dict[str, pd.DataFrame] = {}
    exec(FIRST, names)
    exec(PANDAS[number - 1], names)
    answer = names["answer"]
    assert len(answer)
    pd.testing.assert_frame_equal(
        duckdb.sql(SQL[number - 1]).df(), answer, check_dtype=False
    )


@pytest.mark.acceptance
def test_the_figures_and_frames_of_the_docs_are_there(
    real_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").symlink_to(real_results)
    *_, draw, compare = re.findall(r"^```python\n(.*?)```", REPORT, re.DOTALL | re.M)
    names: dict[str, Any] = {}
    exec(draw, names)
    assert names["figure"].axes[0].get_ylim() == (50, 100)
    assert Path("curves.pdf").read_bytes().startswith(b"%PDF")
    assert {"curves.pdf", "table.tex"} <= {
        f.name for f in Path("paper/figures").iterdir()
    }
    exec(compare.replace("results/study", "results/quickstart"), names)
    # Two methods, two labels of s, two of p and three seeds.
    assert len(names["found"].scores) == 2 * 2 * 2 * 3


def test_the_commands_of_the_docs_find_runs(
    real_results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(real_results.parent)
    table, csv, means = (call(monkeypatch, *shlex.split(c)[2:]) for c in COMMANDS)
    assert "SAFARI" in table and "FedAvg" not in table and "4 rows" in table
    assert "mean" in means and "4 rows" in means
    assert csv.splitlines()[0] == "run_id,p,best,best_std"


def test_a_query_means_what_pandas_says_by_hand(real_results: Path) -> None:
    runs = Store(real_results / "quickstart").runs()
    mine = runs[(runs["config.algorithm"] == "SAFARI") & (runs["label.p"] == 1)]
    means = mine.groupby("run_id")["best"].mean().sort_values(ascending=False)
    found = results(
        [real_results],
        "algorithm == 'SAFARI' and client_prob > 0.5 and p == 1 order by best desc",
    )
    assert found["run_id"].tolist() == means.index.tolist() and len(means) == 2
    assert found["best"].tolist() == pytest.approx(means.tolist())
    assert found["replicates"].tolist() == [3, 3]
    lowest = results([real_results], "order by final limit 1")
    assert lowest["final"].tolist() == [results([real_results])["final"].min()]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("", 8),
        ("p in [1, 3]", 4),
        ("not p == 1 or algorithm == 'FedAvg'", 6),
        ('"algorithm.inner.lr" == 1', 4),
        ("n0 == 100 and zero_init == True", 8),
        ("last10_std >= 0 and rounds == 30", 8),
        ("best >= (select max(best) from runs)", 1),
        ("config->>'$.algorithm.kind' == 'FedAvg'", 4),
        ("client_prob is null", 4),
        (" ORDER by best desc limit 3", 3),
        ("best > 0; -- one statement", 8),
    ],
)
def test_names_values_and_operators(query: str, rows: int, real_results: Path) -> None:
    assert len(results([real_results / "quickstart"], query)) == rows


def test_a_whole_query_gives_its_own_columns(real_results: Path) -> None:
    runs = results([real_results])
    by_p = runs.groupby("p")["best"].mean().sort_values(ascending=False)
    found = results(
        [real_results],
        "SELECT p, avg(r.best) AS mean FROM runs r WHERE r.p > 0 GROUP BY p ORDER BY mean DESC",
    )
    assert list(found) == ["p", "mean"]
    assert found["p"].tolist() == by_p.index.tolist()
    assert found["mean"].tolist() == pytest.approx(by_p.tolist())


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("algorithm == SAFARI", "with texts in 'quotes'"),
        ("lr > 0", '"algorithm.lr", "algorithm.inner.lr"'),
        ("best >", "cannot be answered (Parser Error: syntax error"),
        ("1=1; select 2", "it has 2 statements in place of one"),
    ],
)
def test_a_query_that_cannot_be_answered_says_why(
    query: str, message: str, real_results: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        results([real_results], query)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "query",
    [
        "from '{file}'",
        "1 in (select 1 from read_text('{file}'))",
        "copy runs to '{file}'",
        "true); copy runs to '{file}'; select (1",
        "set enable_external_access = true",
        "select * from frame",
    ],
)
def test_a_query_reaches_no_file_and_no_variable(
    query: str, real_results: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="cannot be answered"):
        results([real_results], query.format(file=file))
    assert file.read_text() == "a,b\n1,2\n" and len(list(tmp_path.iterdir())) == 1


def copy_of(real_results: Path, folder: Path) -> Store:
    """A copy of the sweep."""
    shutil.copytree(real_results / "quickstart", folder)
    return Store(folder)


def test_what_a_terminal_would_obey_is_not_printed(
    real_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of(real_results, tmp_path / "evil")
    evil = "\x1b]0;owned\x07\x1b[2J\u202elabel"
    manifest = store.manifest().model_copy(deep=True)
    for entry in manifest.entries:
        entry.labels.update(p=f"{evil} {entry.labels['p']}")
    store.write_manifest(manifest)
    table = call(monkeypatch, "", str(store.path))
    csv = call(monkeypatch, "", str(store.path), "--csv")
    for said in (table, csv):
        assert "]0;owned[2Jlabel" in said
        assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_a_diverged_replicate_is_counted_and_not_averaged(
    real_results: Path, tmp_path: Path
) -> None:
    other = copy_of(real_results, tmp_path / "other")
    run_id, result = next(iter(other.read().runs.items()))
    changes = {"status": Status.DIVERGED, "reason": "NaN"}
    end = result.cells[2].model_copy(update=changes)
    found = other.results({end.cell})
    other.take([end], found.rows, found.clients)
    runs = Store(real_results / "quickstart").runs()
    one = runs[runs["run_id"] == run_id].sort_values("replicate")
    found = results([tmp_path, real_results], f"run_id == '{run_id}'")
    assert found["sweep"].tolist() == ["other", "quickstart"]
    assert found["status"].tolist() == ["diverged", "finished"]
    assert found["replicates"].tolist() == [2, 3]
    assert found["best"].iloc[0] == pytest.approx(one["best"].iloc[:2].mean())


def test_the_terminal_csv_and_json_show_the_same_runs(
    real_results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "select run_id, best, s from runs where p == 2 order by best desc"
    chosen = (query, str(real_results))
    said = call(monkeypatch, *chosen, "--csv").splitlines()
    records = json.loads(call(monkeypatch, *chosen, "--json"))
    assert said[0] == "run_id,best,s" and len(said) == 5 == len(records) + 1
    assert [line.split(",")[0] for line in said[1:]] == [r["run_id"] for r in records]
    shown = call(monkeypatch, *chosen)
    assert "4 rows" in shown and f"{records[0]['best']:.4g}" in shown
    assert [shown.index(r["run_id"]) for r in records] == sorted(
        shown.index(r["run_id"]) for r in records
    )
    assert call(monkeypatch, "p == 99", str(real_results)).strip() == "0 rows"


def test_a_statistic_that_a_query_names_is_computed(real_results: Path) -> None:
    rounds = fl.load(real_results / "quickstart").rounds
    groups = rounds.groupby(["run_id", "replicate"])["test_accuracy"]
    last = groups.apply(lambda own: own[-20:].mean()).groupby("run_id").mean()
    order = last.sort_values(ascending=False)
    found = results([real_results], "rolling20 > 0 order by rolling20 desc")
    assert found["run_id"].tolist() == order.index.tolist()
    assert found["rolling20"].tolist() == pytest.approx(order.tolist())
    other = "select best5, best5_std, rise_time20 from runs"
    assert results([real_results], other).notna().all(axis=None)


def test_rounds_until_a_value_have_no_mean_of_the_replicates_alone_that_reached_it(
    real_results: Path,
) -> None:
    rounds = fl.load(str(real_results / "quickstart")).rounds
    tops = rounds.groupby(["run_id", "replicate"])["test_accuracy"].max()
    some = tops.loc[
        [(tops.groupby("run_id").agg(lambda own: own.max() - own.min())).idxmax()]
    ]
    limit = round(float(some.mean()), 4)
    name = f"rounds_to_accuracy_{limit}"
    found = results([real_results / "quickstart"], f'"{name}" > 0 or true')
    reached = (tops >= limit).groupby("run_id")
    known = found.set_index("run_id")[name].notna()
    assert known.to_dict() == reached.all().to_dict()
    assert (reached.any() & ~reached.all()).any() and known.any()
