"""deploy/sky.yaml and deploy/kuberay.yaml: what SkyPilot's and KubeRay's schemas allow.

The schemas lie in helpers/schemas, with the program that made them. What they cannot know is
asserted here too: that nobody else's Ray is touched, and that versions and names fit.
"""

import copy
import json
import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "tests" / "helpers" / "schemas"
FILES = {"sky.yaml": "skypilot_task.json", "kuberay.yaml": "kuberay_rayjob.json"}
Config = dict[str, Any]


def read(name: str) -> Config:
    config: Config = yaml.safe_load((ROOT / "deploy" / name).read_text())
    return config


def mistakes(name: str, config: Config) -> list[str]:
    """The places of a file that its schema refuses, and why."""
    schema = json.loads((SCHEMAS / FILES[name]).read_text())
    validator = jsonschema.Draft202012Validator(schema)
    return [
        f"{'.'.join(map(str, error.path))}: {error.message}"
        for error in validator.iter_errors(config)
    ]


@pytest.mark.parametrize("name", FILES)
def test_the_schema_accepts_the_file(name: str) -> None:
    assert mistakes(name, read(name)) == []


def worker(job: Config) -> Config:
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    container: Config = group["template"]["spec"]["containers"][0]
    return container


CHANGES: dict[str, tuple[str, Callable[[Config], object]]] = {
    "an unknown key of a task": ("sky.yaml", lambda c: c.update(node_count=4)),
    "no quantity of memory": (
        "kuberay.yaml",
        lambda c: worker(c)["resources"]["limits"].update(memory="64 GB"),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_schema_refuses(what: str) -> None:
    name, change = CHANGES[what]
    config = copy.deepcopy(read(name))
    change(config)
    assert len(mistakes(name, config)) >= 1


@pytest.mark.parametrize("schema", FILES.values())
def test_a_schema_names_its_source_with_version_and_date(schema: str) -> None:
    text = (SCHEMAS / schema).read_text()
    assert len(text) < 200_000
    source = json.loads(text)["$comment"]
    assert re.search(r"(0\.14\.1|[0-9a-f]{40}).* 20\d\d-\d\d-\d\d$", source), source


def test_skypilots_own_ray_is_left_alone() -> None:
    task = read("sky.yaml")
    commands = re.sub("#.*", "", task["setup"] + task["run"])
    assert "ray stop" not in commands and "auto" not in commands
    assert "6380" not in commands and "127.0.0.1:6379" in commands
    assert task["resources"]["use_spot"] and task["envs"]["OUT"] is None
    assert set(task["secrets"]) == {"RAY_AUTH_TOKEN"}
    assert set(re.findall(r"\$\{?([A-Z]{2}\w+)", commands)) <= {
        *task["envs"],
        *("PATH", "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
        "SKYPILOT_NUM_GPUS_PER_NODE",
    }


@pytest.mark.parametrize("part", ["setup", "run"])
def test_bash_can_read_skypilots_commands(part: str) -> None:
    commands = read("sky.yaml")[part]
    done = subprocess.run(["bash", "-n"], input=commands, text=True)
    assert done.returncode == 0


def test_the_job_on_kubernetes_is_tried_once_and_ends_its_pods() -> None:
    spec = read("kuberay.yaml")["spec"]
    assert spec["backoffLimit"] == 0 and spec["shutdownAfterJobFinishes"] is True
    assert spec["activeDeadlineSeconds"] > 0
    assert "--address 127.0.0.1:6379" in spec["entrypoint"]
    assert "s3://" in spec["entrypoint"]


def test_the_cluster_on_kubernetes_has_the_pinned_ray_one_image_and_all_nodes() -> None:
    spec = read("kuberay.yaml")["spec"]
    cluster = spec["rayClusterSpec"]
    assert cluster["rayVersion"] == version("ray")
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {g["template"]["spec"]["containers"][0]["image"] for g in groups}
    assert len(images) == 1
    workers = cluster["workerGroupSpecs"][0]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"]
    assert f"--wait-nodes {workers['replicas'] + 1} " in spec["entrypoint"]
    # What the job submits by is in the image, which runs the commands of KubeRay by bash.
    assert "'ray[default]'" in (ROOT / "Dockerfile").read_text()
