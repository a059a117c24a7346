"""cluster.yaml and cluster-local.yaml: what Ray checks offline, and what it does not check.

The AWS file also goes through Ray's own launcher, against moto: a model of AWS's
answers on loopback. botocore checks every request against AWS's published shapes before
it is sent.
"""

import copy
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import ray
import yaml

ROOT = Path(__file__).parents[2]
FILES = ["cluster.yaml", "cluster-local.yaml"]
AWS = (ROOT / "cluster.yaml").read_text()
SCHEMA = json.loads(
    (Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text()
)
REGION = "us-west-2"


@pytest.fixture(params=FILES)
def any_config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return yaml.safe_load((ROOT / request.param).read_text())


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load(AWS)


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as `ray up` sees it, merged with Ray's defaults and validated."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    full = prepare_config(copy.deepcopy(config))
    validate_config(full)
    return full


def test_ray_accepts_it_and_adds_no_command_of_its_own(
    any_config: dict[str, Any],
) -> None:
    full = prepared(any_config)
    # not Ray's nightly wheel
    assert full["setup_commands"] == any_config["setup_commands"]
    assert full["head_start_ray_commands"] == any_config["head_start_ray_commands"]
    assert full["docker"].get("image") == any_config.get("docker", {}).get("image")


def test_provider_keys_are_ones_that_ray_knows(any_config: dict[str, Any]) -> None:
    """Ray passes unknown ones on in silence."""
    assert set(any_config["provider"]) <= set(
        SCHEMA["properties"]["provider"]["properties"]
    )
    assert "min_workers" not in any_config  # of old files; ignored


def test_every_ray_version_is_the_installed_and_pinned_one(
    config: dict[str, Any],
) -> None:
    image = re.fullmatch(
        r"rayproject/ray:([\d.]+)-py(\d)(\d+)-gpu", config["docker"]["image"]
    )
    installs = [
        re.findall(r"ray\[[\w,]+\]==([\w.]+)", (ROOT / f).read_text()) for f in FILES
    ]
    pins = re.findall(
        r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    assert image and [len(found) for found in installs] == [1, 1]
    assert {image[1], *installs[0], *installs[1], *pins} == {version("ray")}
    assert (int(image[2]), int(image[3])) >= (3, 11)  # requires-python


def test_the_head_on_aws_gets_a_boto3_that_fits_the_other_packages(
    config: dict[str, Any],
) -> None:
    """The image's own cannot be imported beside them, and Ray would start no worker."""
    (install,) = config["setup_commands"]
    assert " boto3 " in install and "-c constraints.txt" in install
    pins = (ROOT / "constraints.txt").read_text()
    assert re.search(rf"^boto3=={re.escape(version('boto3'))}$", pins, re.MULTILINE)


def test_file_mounts_exist_and_are_what_is_installed(
    any_config: dict[str, Any],
) -> None:
    mounts = dict(any_config["file_mounts"])
    token = mounts.pop("~/ray_auth_token")
    assert token == "~/.ray/auth_token"  # where `ray get-auth-token --generate` puts it
    ((target, source),) = mounts.items()
    assert (ROOT / source).resolve() == ROOT
    assert (ROOT / source / "pyproject.toml").is_file()
    assert target != "~/raysafl"  # a script in ~ would import that folder
    assert any(f"cd {target} " in command for command in any_config["setup_commands"])
    assert all((ROOT / name).exists() for name in any_config["rsync_filter"])


def test_every_node_has_the_token_and_servers_are_on_loopback(
    any_config: dict[str, Any],
) -> None:
    text = yaml.safe_dump(any_config, width=10_000)
    assert "RAY_AUTH_MODE=token" in text and "disabled" not in text
    assert re.search(r"RAY_AUTH_TOKEN_PATH=(~|/home/ray)/ray_auth_token", text)
    assert "0.0.0.0" not in text
    start, mlflow = any_config["head_start_ray_commands"][1:]
    assert "--dashboard-host=127.0.0.1" in start
    assert "mlflow server --host 127.0.0.1 --port 5000" in mlflow
    assert "MLFLOW_TRACKING_URI=http://127.0.0.1:5000" in text


def test_worker_counts(config: dict[str, Any]) -> None:
    full = prepared(config)
    total = full["max_workers"]
    workers = {
        k: v
        for k, v in full["available_node_types"].items()
        if k != full["head_node_type"]
    }
    assert full["available_node_types"][full["head_node_type"]]["max_workers"] == 0
    for name, node in workers.items():
        assert node["min_workers"] == 0, name  # from zero
        assert (
            0
            < node["max_workers"]
            <= total
            <= sum(w["max_workers"] for w in workers.values())
        )
    assert 0 < full["idle_timeout_minutes"] <= 60  # idle GPUs are paid for
    spot, other = workers["gpu_spot"], workers["gpu_on_demand"]
    assert spot["priority"] > other["priority"]
    assert spot["resources"] == other["resources"]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """One for all tests here: Ray keeps its connections."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def cloud(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The image id of a made-up AWS with the role that docs/cluster.md makes."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes the ssh key there
    iam = boto3.client("iam", region_name=REGION)
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}}
    iam.create_role(
        RoleName="raysafl",
        AssumeRolePolicyDocument=json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": [{**trust, "Action": "sts:AssumeRole"}],
            }
        ),
    )
    iam.create_instance_profile(InstanceProfileName="raysafl")
    iam.add_role_to_instance_profile(InstanceProfileName="raysafl", RoleName="raysafl")
    images = boto3.client("ec2", region_name=REGION).describe_images(Owners=["amazon"])[
        "Images"
    ]
    yield images[0]["ImageId"]
    urlopen(Request(f"{moto}/moto-api/reset", method="POST")).close()


def launch(config: dict[str, Any], image: str) -> dict[str, Any]:
    """One instance of each node type, launched by Ray's own code; by node type."""
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    for node in config["available_node_types"].values():
        assert re.fullmatch("ami-[0-9a-f]{17}", node["node_config"]["ImageId"])
        node["node_config"]["ImageId"] = image
    full = bootstrap_aws(prepared(config))
    provider, made = AWSNodeProvider(full["provider"], full["cluster_name"]), {}
    for name, node in full["available_node_types"].items():
        made |= {
            name: provider.create_node(
                node["node_config"], {"ray-user-node-type": name}, 1
            )
        }
    return {name: next(iter(nodes.values())) for name, nodes in made.items()}


def test_rays_launcher_starts_every_node_type_on_a_model_of_aws_with_ssh_alone_open(
    config: dict[str, Any], cloud: str
) -> None:
    import boto3

    made = launch(config, cloud)
    assert {
        name: (node.instance_type, node.instance_lifecycle)
        for name, node in made.items()
    } == {
        "head": ("m5.2xlarge", None),
        "cpu_spot": ("c5.4xlarge", "spot"),
        "gpu_spot": ("g4dn.12xlarge", "spot"),
        "gpu_on_demand": ("g4dn.12xlarge", None),
    }
    for node in made.values():
        assert node.iam_instance_profile["Arn"].endswith("/raysafl")
        (group,) = node.security_groups
        assert group["GroupName"] == "ray-autoscaler-raysafl"
    # Only ssh is open to the outside.
    ec2 = boto3.client("ec2", region_name=REGION)
    groups = ec2.describe_security_groups(
        Filters=[{"Name": "group-name", "Values": ["ray-autoscaler-raysafl"]}]
    )["SecurityGroups"]
    rules = groups[0]["IpPermissions"]
    outside = [(rule["FromPort"], rule["ToPort"]) for rule in rules if rule["IpRanges"]]
    assert outside == [(22, 22)]
