"""How a sweep was made: versions, machines and time, from `runs.parquet`."""

import shlex
from pathlib import Path

import pandas as pd

from raysafl.core.text import count, duration
from raysafl.storage.manifest import Manifest
from raysafl.storage.mlflow_view import MlflowView, read_view
from raysafl.storage.store import Store

# Where `raysafl ui` listens, unless the port is taken.
UI = "http://127.0.0.1:5000"
VERSIONS = ("raysafl", "python", "numpy", "torch", "ray")


def origin_facts(runs: pd.DataFrame, manifest: Manifest) -> dict[str, str]:
    """Describe how a sweep was made: experiment, commit, versions, machines and time.

    If the sweep was continued after an update or on another machine, all values are
    named with the number of runs that have each. What is not known is left out.
    """
    each = runs.drop_duplicates("run_id") if len(runs) else runs
    versions = {name: _values_text(each, name) for name in VERSIONS}
    facts = {
        "experiment": manifest.source,
        "commit": _values_text(each, "commit"),
        "versions": ", ".join(f"{name} {v}" for name, v in versions.items() if v),
        "host": _values_text(each, "host"),
        "device": _values_text(each, "device"),
        "total time": duration(float(each["seconds"].sum()))
        if "seconds" in each
        else "",
    }
    return {name: value for name, value in facts.items() if value}


def mlflow_text(store: Store) -> str:
    """Say where MLflow shows a sweep, and how to start it, as Markdown; empty if not known."""
    view = read_view(store)
    if view is None:
        return ""
    if view.is_served:
        page = view.uri.rstrip("/") + view.page
        return f"In MLflow: [all runs and their charts]({page})."
    root = store.path.parent
    return (
        f"In MLflow: start its server with `{ui_call(view, root, str(root))}`, and open "
        f"[all runs and their charts]({UI}{view.page}). If the server names another port, take "
        "that one."
    )


def ui_call(view: MlflowView, root: Path, shown: str) -> str:
    """Return the command that serves the database to which a sweep in `root` is logged.

    Args:
        view: where MLflow shows the sweep.
        root: the folder that holds the sweep.
        shown: how the command names it.
    """
    beside = f"sqlite:///{root.resolve() / 'mlflow.db'}"
    uri = f"MLFLOW_TRACKING_URI={shlex.quote(view.uri)} "
    return f"{'' if view.uri == beside else uri}raysafl ui {shlex.quote(shown)}"


def _values_text(each: pd.DataFrame, column: str) -> str:
    """Write the values of a column, with the number of runs if there are several."""
    if column not in each:
        return ""
    counts = each[column].dropna().astype(str).value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return ", ".join(
        f"{value} ({count(n, 'run')})" for value, n in counts.items() if value
    )
