"""Which share of a GPU a client actor is given, on a Ray with GPUs that are only numbers."""

import json
import os
import sys
import tempfile

from helpers.commands import checked_output
from helpers.patience import PATIENCE

SCRIPT = """
import json, sys
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from raysafl.cluster.gpus import own_share

@ray.remote
class Actor:
    def share(self):
        return own_share()

ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)

def share_of(gpus):
    # Client actors run in the placement group of their trial.
    group = placement_group([{"CPU": 1, "GPU": gpus}])
    strategy = PlacementGroupSchedulingStrategy(group)
    options = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": strategy}
    actor = Actor.options(**options).remote()
    share = ray.get(actor.share.remote())
    ray.kill(actor)
    remove_placement_group(group)
    return share

print(json.dumps([share_of(gpus) for gpus in json.loads(sys.argv[1])]))
"""


def test_an_actor_knows_its_share_of_a_gpu() -> None:
    """An actor that has several GPUs may use all of each."""
    asked, due = [0.25, 1, 2], [0.25, 1.0, 1.0]
    with tempfile.TemporaryDirectory(
        prefix="rs", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        env = os.environ | {
            "RAY_TMPDIR": folder,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", SCRIPT, json.dumps(asked)]
        said = checked_output(command, env=env, timeout=PATIENCE)
    assert json.loads(said.splitlines()[-1]) == due
