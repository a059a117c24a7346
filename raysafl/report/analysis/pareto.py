"""The table's statistic against cost: which choices of a sweep no other choice beats."""

import json
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest

# The kind of the policy that enforces rounds.
SNAPSHOT = "Snapshot"
COSTS = {
    "samples": "server samples used",
    "snapshots": "enforced rounds",
    "bytes": "bytes to and from clients (MB)",
}


def find_problems(
    entries: pd.DataFrame, runs: pd.DataFrame, manifest: Manifest
) -> list[pd.DataFrame]:
    """Return the problems of a sweep that have two or more choices with a number.

    A problem is made of entries that differ only in what one can choose, which is the
    method, the server's data and the share of enforced rounds. They have the same clients'
    data, model, rounds and availability of clients.

    Returns:
        The entries of each problem, with the columns `mean`, `std` and the `COSTS`.
    """
    if runs.empty or "config" not in runs:
        return []
    done = runs[runs["status"] == Status.FINISHED]
    costs = ["total_bytes", "total_snapshots", "total_server_rounds"]
    first = done.groupby("run_id")["config"].first()
    configs = {str(i): json.loads(text) for i, text in first.items()}
    name = manifest.table.statistic
    known = entries[
        entries["run_id"].isin(configs) & np.isfinite(entries[f"mean.{name}"])
    ].copy()
    known = known.rename(columns={f"mean.{name}": "mean", f"std.{name}": "std"})

    own = [configs[i] for i in known["run_id"]]
    spent = done.groupby("run_id")[costs].mean().reindex(known["run_id"])
    shares = np.array([bool(c["data"].get("share")) for c in own], bool)
    held = np.array([_server_samples(c["data"].get("server")) for c in own], float)
    # Server data cost nothing in runs that never use them.
    used = shares | (spent["total_server_rounds"].to_numpy(float) > 0)
    known["samples"] = np.where(used, held, 0)
    snapshot = np.array([c["participation"]["kind"] == SNAPSHOT for c in own], bool)
    known["snapshots"] = spent["total_snapshots"].to_numpy(float) * snapshot
    known["bytes"] = spent["total_bytes"].to_numpy(float) / 1e6
    groups = known.groupby([_question(c) for c in own], sort=False)
    return [part for _, part in groups if len(part) > 1]


def _server_samples(server: dict[str, Any] | None) -> float:
    """Return how many samples a server with these data holds; NaN if they do not say it."""
    if server is None:
        return 0.0
    if server.get("kind") == "FromClients":
        return float(server["c"] * server["per_client"])
    return float(server.get("n0") or np.nan)


def _question(config: dict[str, Any]) -> str:
    """Return what one cannot choose in a run, as text that is equal for equal problems."""
    data = {k: v for k, v in config["data"].items() if k not in ("server", "share")}
    policy = config["participation"]
    # Enforced rounds are a choice; the availability behind them is not.
    policy = policy["base"] if policy["kind"] == SNAPSHOT else policy
    return json.dumps([data, config["model"], config["rounds"], policy], sort_keys=True)


def front(
    cost: NDArray[np.float64], value: NDArray[np.float64], higher_is_better: bool = True
) -> list[int]:
    """Find the points to which no other one is at least equal in both and better in one.

    Of equal points it is the first.

    Args:
        cost: the cost of each point.
        value: the statistic of each point.
        higher_is_better: whether a higher value is better.

    Returns:
        Their positions in the arrays, by rising cost.
    """
    gain = value if higher_is_better else -value
    best = -np.inf
    found = list[int]()
    for i in np.lexsort((-gain, cost)):
        if gain[i] > best:
            found.append(int(i))
            best = float(gain[i])
    return found
