"""Which share of a GPU a client actor is given, on a Ray with GPUs that are only numbers."""

import json
import os
import subprocess
import sys
import tempfile

import pytest

SCRIPT = """
import json, sys
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from raysafl.runtime.client_actor import own_share

@ray.remote
class Actor:
    def share(self):
        return own_share()

ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)
gpus = float(sys.argv[1])
# Client actors run in the placement group of their trial.
group = placement_group([{"CPU": 1, "GPU": gpus}])
strategy = PlacementGroupSchedulingStrategy(group)
actor = Actor.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=strategy).remote()
print(json.dumps(ray.get(actor.share.remote())))
"""


@pytest.mark.parametrize(("gpus", "share"), [(0.25, 0.25), (1, 1.0), (2, 1.0)])
def test_an_actor_knows_its_share_of_a_gpu(gpus: float, share: float) -> None:
    with tempfile.TemporaryDirectory(
        prefix="rs", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        env = os.environ | {
            "RAY_TMPDIR": folder,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(gpus)],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == share
