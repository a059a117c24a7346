"""MLflow has the models that runs keep, and loads them with `mlflow.pyfunc`."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.here import run_in_process
from helpers.tracked import uri_of

import raysafl as fl
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.tracking import descriptions
from raysafl.tracking.choice import Tracking
from raysafl.tracking.tracker import sync

with warnings.catch_warnings():
    # Importing it raises warnings of its own.
    warnings.simplefilter("ignore")
    import mlflow.pyfunc


@pytest.fixture
def keeping(store: Store, tiny: fl.Run) -> tuple[Store, fl.Run]:
    """A finished run that kept its last models, in the folder of the fixture `store`."""
    run = tiny.replace(keep="last")
    store.write_manifest(fl.Sweep("demo", [run]).manifest())
    run_in_process(run, store, Worker(run.cells, run.data.load(), run.model))
    return store, run


def test_a_kept_model_is_an_artifact_that_pyfunc_loads_and_that_predicts(
    keeping: tuple[Store, fl.Run], view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = keeping
    sync(store.path, None, print)
    now = view()
    mlflow_id = now.children[run.id].info.run_id
    assert {"config.json", "model"} <= set(now.files(mlflow_id))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri_of(store))
    uri = f"runs:/{mlflow_id}/model"
    x = run.data.load().test.x
    for replicate in (0, 1):
        chosen = {"replicate": replicate}
        loaded = mlflow.pyfunc.load_model(uri, model_config=chosen)
        expected = fl.load_model(store.path, run, replicate).predict(x)
        assert np.array_equal(loaded.predict(x), expected)
    with pytest.raises(ValueError, match=r"replicate 2 was kept, but of \[0, 1\]"):
        mlflow.pyfunc.load_model(uri, model_config={"replicate": 2})
    first = mlflow.pyfunc.load_model(uri)
    assert np.array_equal(first.predict(x), fl.load_model(store.path, run).predict(x))
    signature = first.metadata.signature
    (taken,), (given,) = signature.inputs.to_dict(), signature.outputs.to_dict()
    assert taken["tensor-spec"] == {"dtype": "uint8", "shape": (-1, 1, 8, 8)}
    assert given["type"] == "string"


def test_a_model_of_a_table_has_its_columns_as_a_signature_and_takes_raw_rows(
    store: Store, tiny: fl.Run, view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(20, 90, 200), "height": rng.normal(170, 9, 200)}
    )
    frame["cost"] = 0.1 * frame["age"]
    source = fl.from_pandas(frame, label="cost", test_share=0.25, standardise=True)
    run = tiny.replace(
        data=fl.Federation(dataset=source, partition=fl.Iid()),
        objective=fl.objectives.Regression(),
        keep="last",
    )
    store.write_manifest(fl.Sweep("demo", [run]).manifest())
    work = Worker(run.cells, source.load(), run.model, objective=run.objective)
    run_in_process(run, store, work)
    sync(store.path, None, print)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri_of(store))
    uri = f"runs:/{view().children[run.id].info.run_id}/model"
    loaded = mlflow.pyfunc.load_model(uri)
    signature = loaded.metadata.signature
    assert signature.inputs.input_names() == ["age", "height"]
    assert signature.outputs.to_dict() == [
        {"type": "float", "name": "cost", "required": True}
    ]
    expected = fl.load_model(store.path, run).predict(frame)
    for rows in (frame[["height", "age"]], frame.assign(name="-")):
        assert np.array_equal(loaded.predict(rows), expected)
    whole = frame.round().astype(int)
    assert np.array_equal(
        loaded.predict(whole), fl.load_model(store.path, run).predict(whole)
    )


def test_a_large_model_stays_in_the_folder_and_summaries_have_none(
    keeping: tuple[Store, fl.Run], view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = keeping
    sync(store.path, None, print, track=Tracking.SUMMARY)
    assert view().files(view().children[run.id].info.run_id) == []
    monkeypatch.setattr(descriptions, "MOST_BYTES", 1000)
    sync(store.path, None, print)
    assert "model" not in view().files(view().children[run.id].info.run_id)
