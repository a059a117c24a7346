"""StackOverflow's tag prediction from small files of its form, from the file to the report."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.sweeps_here import go
from rich.console import Console

import raysafl as fl
from raysafl.cli.data_preview import preview
from raysafl.kept.pyfunc import signature_of

TAGS = ["bash", "c++", "css", "git", "html", "java", "python", "regex", "sql"]


def posts(count: int, users: int, seed: int) -> pd.DataFrame:
    """Posts whose words are those of their tags, and others."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        tags = rng.choice(TAGS, rng.integers(1, 4), replace=False)
        words = [f"{tag}{rng.integers(2)}" for tag in tags for _ in range(3)]
        words += [f"word{n}" for n in rng.integers(30, size=4)]
        user, title = f"user {i % users}", "a question"
        rows.append((user, title, " ".join(rng.permutation(words)), "|".join(tags)))
    return pd.DataFrame(rows, columns=["user", "title", "tokens", "tags"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> fl.data.InMemory:
    folder = tmp_path_factory.mktemp("stackoverflow")
    posts(240, 8, seed=0).to_parquet(folder / "train.parquet")
    posts(80, 10, seed=1).to_parquet(folder / "test.parquet")
    return fl.from_parquet(
        folder,
        label="tags",
        target="tags",
        names=TAGS[:8],
        features=["tokens", "title"],
        words=40,
        client="user",
        name="stackoverflow",
    )


@pytest.fixture(scope="module")
def run(source: fl.data.InMemory) -> fl.Run:
    return fl.Run(
        data=fl.Federation(
            dataset=source,
            clients=8,
            partition=fl.ByColumn(column="user"),
            server=fl.IidServer(n0=40),
            validation=fl.Validation(server=0.5),
        ),
        model=fl.models.BagOfWords(words=40),
        objective=fl.objectives.MultiLabel(),
        algorithm=fl.FedAvg(),
        participation=fl.Absent(s=2, m=3),
        local=fl.LocalTraining(lr=60, batch_size=16, epochs=3),
        rounds=12,
        replicates=2,
        keep="best_val",
        eval_clients=fl.PerClient(on="own"),
    )


@pytest.fixture(scope="module")
def sweep(run: fl.Run) -> fl.Sweep:
    algorithms = {"FedAvg": fl.FedAvg(), "SAFARI": fl.SAFARI()}
    runs = {(name,): run.replace(algorithm=own) for name, own in algorithms.items()}
    return fl.Sweep("tags", runs, axes=["algorithm"])


@pytest.mark.usefixtures("reports")
def test_a_sweep_learns_tags_and_its_report_names_the_recall(
    sweep: fl.Sweep, run: fl.Run, source: fl.data.InMemory, tmp_path: Path
) -> None:
    outcome, _ = go(sweep, tmp_path)
    rows = outcome.store.rounds()
    last = rows[rows["round"] == 11]
    assert len(last) == 4 and (last.test_recall_at_5 > 0.9).all()
    assert last[["val_recall_at_5", "test_loss"]].notna().all(axis=None)
    served = outcome.store.clients()
    assert served.quality.between(0, 1).all() and served.client.nunique() == 8

    report = outcome.store.file("table.md").read_text()
    assert "final_recall_at_5" in report and "in %" in report
    assert "share of the tags among the 5 largest outputs of their sample" in report

    model = fl.load_model(outcome.store.path, run)
    dataset = source.load()
    outputs = model.predict(dataset.test.x)
    signature = signature_of(outcome.store.model(run.id).read_bytes())
    assert signature.outputs.input_names() == list(dataset.targets)
    top = (-outputs).argsort(1)[:, :5]
    y = dataset.test.y
    recall = np.take_along_axis(y, top, 1).sum() / y.sum()
    kept = rows[(rows.run_id == run.id) & (rows.replicate == 0)]
    best = kept.val_recall_at_5.to_numpy().argmax()
    assert recall == pytest.approx(kept.test_recall_at_5.iloc[best], rel=1e-6)


def test_data_show_counts_samples_and_names_users(
    sweep: fl.Sweep, tmp_path: Path
) -> None:
    table, files = preview(sweep, tmp_path, {})
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    assert "8: user 0, user 1" in text and "classes per client" not in text
    assert [file.name for file in files][:2] == ["labels-1.png", "clients-1.csv"]


def test_partitions_and_server_data_by_class_say_that_tags_are_no_classes(
    run: fl.Run,
) -> None:
    dataset = run.data.load()
    for field, part in (
        ("data.partition", fl.Dirichlet(alpha=0.1)),
        ("data.server", fl.data.StratifiedServer(n0=20)),
    ):
        data = run.replace({field: part}).data
        with pytest.raises(ValueError, match="are numbers or tags; take"):
            data.split(dataset, seed=0)


def test_the_default_objective_is_refused_with_the_right_one(run: fl.Run) -> None:
    with pytest.raises(ValueError, match=r"give the run objective=.*MultiLabel\(\)"):
        fl.objectives.Classification().check(run.data.load())
