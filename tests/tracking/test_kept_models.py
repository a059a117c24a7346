"""MLflow has the models that runs keep, and loads them with `mlflow.pyfunc`."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.here import run_in_process
from helpers.tracked import uri_of

import raysafl as fl
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.tracking import kept
from raysafl.tracking.choice import Tracking
from raysafl.tracking.sync import sync

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
    test = run.data.load().test
    x = test.x[:5].astype(np.float32) * test.scale + test.shift
    for replicate in (0, 1):
        chosen = {"replicate": replicate}
        loaded = mlflow.pyfunc.load_model(uri, model_config=chosen)
        module = fl.load_model(store.path, run, replicate)
        with torch.no_grad():
            expected = module(torch.from_numpy(x)).numpy()
        assert np.array_equal(loaded.predict(x), expected)
        flat = pd.DataFrame(x.reshape(5, -1))
        assert np.array_equal(loaded.predict(flat), expected)
    first = mlflow.pyfunc.load_model(uri).predict(x)
    module = fl.load_model(store.path, run)
    assert np.array_equal(first, module(torch.from_numpy(x)).detach().numpy())


def test_a_large_model_stays_in_the_folder_and_the_run_says_so(
    keeping: tuple[Store, fl.Run], view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = keeping
    monkeypatch.setattr(kept, "MOST_BYTES", 1000)
    sync(store.path, None, print)
    child = view().children[run.id]
    assert "model" not in view().files(child.info.run_id)
    note = child.data.tags["mlflow.note.content"]
    assert "are more than" in note and f"models/{run.id}.safetensors" in note


def test_summaries_have_no_models(keeping: tuple[Store, fl.Run], view: Any) -> None:
    store, run = keeping
    sync(store.path, None, print, track=Tracking.SUMMARY)
    assert view().files(view().children[run.id].info.run_id) == []
