"""A kept model predicts from raw rows and images, in the units and names of the data."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.commands import checked_output
from helpers.here import run_in_process
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor, nn

import raysafl as fl
from raysafl.kept import content
from raysafl.kept.pyfunc import signature_of
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store

FEATURES = ["age", "income", "height"]
LABELS: dict[str, Any] = {
    "ill": fl.objectives.Classification(),
    "cost": fl.objectives.Regression(),
}
# What the fresh process of a test does: no data of the sweep are there.
FRESH = """
import sys
import pandas as pd
import raysafl as fl
row, *models = sys.argv[1:]
for folder, run in zip(models[::2], models[1::2]):
    model = fl.load_model(folder, run)
    print(repr(model.predict(pd.read_csv(row)).tolist()))
"""


def people() -> pd.DataFrame:
    """Features of very unequal size, two of them whole numbers, and two targets."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "town": rng.choice(["Bern", "Genf"], 200),
            "age": rng.integers(20, 90, 200),
            "income": rng.normal(60_000, 9_000, 200),
            "height": rng.integers(150, 200, 200),
        }
    )
    frame["ill"] = np.where(frame.age * 1000 > frame.income, "yes", "no")
    frame["cost"] = 0.1 * frame.age + rng.normal(0, 0.5, 200)
    return frame


def source_of(label: str, frame: pd.DataFrame | None = None) -> fl.data.InMemory:
    return fl.from_pandas(
        people() if frame is None else frame,
        label=label,
        features=FEATURES,
        client="town",
        test_share=0.25,
        standardise=True,
    )


def run_on(source: fl.data.Source, **changes: Any) -> fl.Run:
    fields: dict[str, Any] = {
        "data": fl.Federation(dataset=source, clients=2, partition=fl.Iid()),
        "model": fl.MLP(hidden=[8]),
        "algorithm": fl.FedAvg(),
        "participation": fl.Uniform(m=2),
        "local": fl.LocalTraining(lr=0.02, batch_size=16, epochs=1),
        "rounds": 5,
        "keep": "last",
        **changes,
    }
    return fl.Run(**fields)


def kept(run: fl.Run, path: Path) -> Store:
    """The folder of a run that has run in this process."""
    store = Store(path)
    store.create()
    store.write_manifest(fl.Sweep("kept", [run]).manifest())
    objective = run.objective
    work = Worker(run.cells, run.data.load(), run.model, objective=objective)
    run_in_process(run, store, work)
    return store


def outputs_of(file: Path, raw_BD: NDArray[Any]) -> NDArray[np.float64]:
    """What NumPy computes for raw rows from the tensors of a file of an MLP."""
    tensors = load_file(file)
    trained = {name.rsplit(".", 1)[0] for name in tensors if name[:8] == "trained/"}
    hidden, out = sorted(trained)
    x_BD = (raw_BD - tensors["features/mean"]) / tensors["features/std"]
    h_BH = np.maximum(
        x_BD @ tensors[f"{hidden}.weight"].T + tensors[f"{hidden}.bias"], 0
    )
    return h_BH @ tensors[f"{out}.weight"].T + tensors[f"{out}.bias"]


def test_a_fresh_process_predicts_from_one_raw_csv_row_what_numpy_does_from_the_file(
    tmp_path: Path,
) -> None:
    row = people().iloc[[3]]
    row.to_csv(tmp_path / "row.csv", index=False)
    stores, models, outputs = [], list[str](), {}
    for label, objective in LABELS.items():
        run = run_on(source_of(label), objective=objective)
        stores.append(kept(run, tmp_path / label))
        models += [str(stores[-1].path), run.id]
        file = stores[-1].model(run.id)
        (outputs[label],) = outputs_of(file, row[FEATURES].to_numpy(float))
    command = [sys.executable, "-c", FRESH, tmp_path / "row.csv", *models]
    ill, cost = checked_output(command).splitlines()
    assert ill == repr([["no", "yes"][outputs["ill"].argmax()]])
    assert json.loads(cost) == pytest.approx(outputs["cost"].tolist(), rel=1e-5)


def test_rows_are_predicted_as_they_were_in_the_evaluation(tmp_path: Path) -> None:
    run = run_on(source_of("ill"))
    store = kept(run, tmp_path / "kept")
    model = fl.load_model(store.path, run)
    frame = people()
    dataset = run.data.load()
    whole = model.inputs(frame)
    both = np.concatenate([dataset.train.x, dataset.test.x])
    assert {row.tobytes() for row in whole.numpy()} == {row.tobytes() for row in both}
    is_test = [
        row.tobytes() in {x.tobytes() for x in dataset.test.x} for row in whole.numpy()
    ]
    hits = (model.predict(frame) == frame["ill"])[is_test]
    assert hits.mean() == store.rounds()["test_accuracy"].iloc[-1]


def test_columns_may_stand_in_any_order_and_among_others_and_an_array_in_theirs(
    tmp_path: Path,
) -> None:
    run = run_on(source_of("cost"), objective=fl.objectives.Regression())
    model = fl.load_model(kept(run, tmp_path / "kept").path, run)
    frame = people()
    expected = model.predict(frame)
    assert expected.shape == (200,) and expected.dtype == np.float32
    assert np.array_equal(model.predict(frame[FEATURES[::-1]]), expected)
    assert np.array_equal(model.predict(frame[FEATURES].to_numpy()), expected)
    one = frame.iloc[7].to_frame().T
    assert model.predict(one) == pytest.approx(expected[[7]], rel=1e-6)
    assert model.predict(frame.iloc[:0]).shape == (0,)
    many = pd.concat([frame] * 12, ignore_index=True)
    assert model.predict(many) == pytest.approx(np.tile(expected, 12), rel=1e-6)


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run = run_on(source_of("ill"))
    model = fl.load_model(kept(run, tmp_path / "kept").path, run)
    frame = people()
    wrong: list[tuple[Any, str]] = [
        (
            frame.rename(columns={"income": "Incomes"}),
            "lacks .* did you mean 'Incomes'",
        ),
        (frame.drop(columns="age"), "lacks the columns age"),
        (pd.concat([frame, frame["age"]], axis=1), "has several columns age"),
        (frame.assign(age="old"), "feature column 'age' holds text"),
        (frame.assign(age=np.nan), "feature column 'age': 200 .the first"),
        (np.ones((2, 4)), r"numbers \[B, 3\] for B samples, not float64 \[2, 4\]"),
        (np.ones(3), r"not float64 \[3\]"),
        (np.array([["a", "b", "c"]]), "takes numbers"),
        (np.ones((2, 3), object), r"for B samples, not object \[2, 3\]; give"),
        ({"age": 1.0}, r"not \{'age': 1\.0\}; give a DataFrame of \['"),
        (frame.iloc[0], r"such as pd\.DataFrame\(\[row\]\)"),
        ([[1.0, 2.0, np.inf]], "are NaN, infinite"),
    ]
    for data, message in wrong:
        with pytest.raises(ValueError, match=message):
            model.predict(data)


@pytest.mark.parametrize("standardise", [False, True])
def test_images_are_given_as_they_are_stored_and_classes_come_back_by_name(
    standardise: bool, tiny: fl.Run, tmp_path: Path
) -> None:
    source = fl.Digits(standardise=standardise)
    run = tiny.replace({"data.dataset": source}, keep="last")
    store = kept(run, tmp_path / "kept")
    model = fl.load_model(store.path, run, replicate=1)
    test = run.data.load().test
    predicted = model.predict(test.x)
    rows = store.rounds()
    last = rows[rows["replicate"] == 1]["test_accuracy"].iloc[-1]
    assert (predicted == test.y.astype(str)).mean() == pytest.approx(last)
    assert np.array_equal(model.predict(test.x.astype(float)), predicted)
    wrong: list[tuple[Any, str]] = [
        (test.x / 16, "uint8 numbers, and 0.125 is none; give inputs as they"),
        (-test.x.astype(int), "neither scaled nor standardised"),
        (test.x[:, 0], r"\[B, 1, 8, 8\]"),
        (pd.DataFrame(test.x.reshape(360, -1)), "inputs have no names; give an array"),
    ]
    for data, message in wrong:
        with pytest.raises(ValueError, match=message):
            model.predict(data)


def test_several_numbers_are_predicted_in_the_order_of_their_columns(
    tmp_path: Path,
) -> None:
    frame = people().assign(twice=lambda f: 2 * f["cost"])
    source = fl.from_pandas(
        frame,
        label=["cost", "twice"],
        features=["height"],
        test_share=0.25,
        standardise=True,
    )
    run = run_on(source, objective=fl.objectives.Regression())
    model = fl.load_model(kept(run, tmp_path / "kept").path, run)
    assert model.about.targets == ("cost", "twice")
    found = model.predict(frame)
    assert np.array_equal(found, model(model.inputs(frame)).detach().numpy())
    assert found[:, 1].mean() == pytest.approx(2 * found[:, 0].mean(), rel=0.2)


class Logit(fl.Objective):
    """One output for two classes, which only this objective can read."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        signs_B = 2 * targets.float() - 1
        return nn.functional.softplus(-signs_B * outputs[:, 0])

    def num_outputs(self, dataset: fl.data.Dataset) -> int:
        return 1


def test_outputs_that_only_an_own_objective_can_read_are_returned_as_they_are(
    tmp_path: Path,
) -> None:
    run = run_on(source_of("ill"), objective=Logit())
    model = fl.load_model(kept(run, tmp_path / "kept").path, run)
    outputs = model(model.inputs(people())).detach().numpy()
    assert outputs.shape == (200, 1)
    assert np.array_equal(model.predict(people()), outputs[:, 0])


def test_the_examples_of_the_page_on_kept_models_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Tests of this process may have started a Ray, which a reader of the page has not.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    page = (Path(__file__).parents[2] / "docs" / "kept_models.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    space: dict[str, Any] = {"__name__": "kept_models"}
    # The last one is that of MLflow.
    for block in blocks[:3]:
        exec(block, space)
    assert capsys.readouterr().out.endswith("['yes' 'no']\n")
    assert len(blocks) == 4
    assert space["probabilities"].argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "dtype", "in_mlflow"),
    [
        (np.array([7, -3], np.int8), "int64", "long"),
        (np.array([True, False], object), "bool", "boolean"),
        (np.array([0.5, 2.0]), "float64", "double"),
        (np.array(["0", "1"]), "<U1", "string"),
    ],
)
def test_classes_are_predicted_in_the_type_of_the_target_so_that_they_compare_with_it(
    values: NDArray[Any], dtype: str, in_mlflow: str, tmp_path: Path
) -> None:
    frame = people()
    frame["ill"] = values[(frame.age > 50).to_numpy(int)]
    source = fl.from_pandas(
        frame,
        label="ill",
        features=FEATURES,
        test_share=0.25,
        standardise=True,
        target="class",
    )
    local = fl.LocalTraining(lr=0.2, batch_size=16, epochs=2)
    run = run_on(source, local=local, rounds=5)
    store = kept(run, tmp_path / "kept")
    predicted = fl.load_model(store.path, run).predict(frame)
    assert predicted.dtype == dtype
    # The reported accuracy is that of the same rows; by text, no row would be right.
    assert set(predicted.tolist()) == set(values.tolist())
    test = {x.tobytes() for x in run.data.load().test.x}
    inputs = fl.load_model(store.path, run).inputs(frame).numpy()
    is_test = [row.tobytes() in test for row in inputs]
    reported = store.rounds()["test_accuracy"].iloc[-1]
    assert (predicted == frame["ill"])[is_test].mean() == reported
    file = store.model(run.id).read_bytes()
    assert content.read_model(file)[0].classes == run.data.load().names
    (given,) = signature_of(file).outputs.to_dict()
    assert given == {"type": in_mlflow, "name": "ill", "required": True}
