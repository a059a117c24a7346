"""Make the schemas beside this file again, from SkyPilot's wheel and KubeRay's repository.

In an environment with skypilot 0.14.1, and with `ray.io_rayjobs.yaml` of KubeRay v1.7.0
(`ray-operator/config/crd/bases/`):

    python tests/helpers/schemas/make_schemas.py ray.io_rayjobs.yaml

Both projects are under the Apache licence 2.0. What is written is data: what a task of
SkyPilot and a RayJob may hold. It is stricter than a client of SkyPilot and than
Kubernetes, which pass over unknown keys or drop them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SKYPILOT = "skypilot 0.14.1 from PyPI, sky/utils/schemas.py; made on 2026-11-29"
KUBERAY = (
    "ray-project/kuberay v1.7.0 (59d663aeec13760646da3db9c1cf8cfe883e30b7), "
    "ray-operator/config/crd/bases/ray.io_rayjobs.yaml, version v1; made on 2026-11-29"
)


def without_own_words(schema: Any) -> Any:
    """Write SkyPilot's own keyword for words in any case as a pattern."""
    if isinstance(schema, list):
        return [without_own_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: without_own_words(value) for key, value in schema.items()}
    if words := plain.pop("case_insensitive_enum", None):
        plain["pattern"] = f"^(?i:{'|'.join(words)})$"
    return plain


def skypilot() -> dict[str, Any]:
    """Return what a task may hold, with what SkyPilot checks separately put into it."""
    from sky.utils import schemas  # type: ignore[import-not-found]

    # A server with its plugins loaded refuses unknown keys; a client lets them pass.
    schemas._allow_additional_properties = lambda: False
    task = schemas.get_task_schema()
    task["properties"]["resources"] = schemas.get_resources_schema()
    task["properties"]["file_mounts"]["additionalProperties"] = {
        "anyOf": [{"type": "string"}, schemas.get_storage_schema()]
    }
    del task["properties"]["config"]  # long, and not used here
    strict: dict[str, Any] = without_own_words(task)
    return strict


def closed(schema: Any) -> Any:
    """Refuse the keys that Kubernetes would drop in silence, and leave out descriptions."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    properties = schema.get("properties")
    rest = {key: value for key, value in schema.items() if key != "properties"}
    strict = {key: closed(value) for key, value in rest.items()}
    if isinstance(strict.get("description"), str):
        del strict["description"]
    if properties is not None:
        strict["properties"] = {k: closed(value) for k, value in properties.items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict["additionalProperties"] = False
    return strict


def kuberay(crd: Path) -> dict[str, Any]:
    """Return what a RayJob may hold, less the pod that submits it and its status."""
    definition = yaml.safe_load(crd.read_text())
    (version,) = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
    job: dict[str, Any] = closed(version["schema"]["openAPIV3Schema"])
    del job["properties"]["status"]
    spec = job["properties"]["spec"]["properties"]
    del spec["submitterPodTemplate"]
    cluster = spec["rayClusterSpec"]["properties"]
    worker = cluster["workerGroupSpecs"]["items"]["properties"]
    head = cluster["headGroupSpec"]["properties"]
    assert head["template"] == worker["template"]
    job["$defs"] = {"pod": worker["template"]}
    head["template"] = worker["template"] = {"$ref": "#/$defs/pod"}
    return job


def write(name: str, source: str, schema: dict[str, Any]) -> None:
    """Write a schema with where it comes from."""
    text = json.dumps({"$comment": source, **schema}, separators=(",", ":"))
    (HERE / name).write_text(text + "\n")


if __name__ == "__main__":
    write("skypilot_task.json", SKYPILOT, skypilot())
    write("kuberay_rayjob.json", KUBERAY, kuberay(Path(sys.argv[1])))
