"""A Ray of many nodes on this machine, which lives until its input ends.

It begins with a head that has no cores, and says its address. `add {"num_gpus": 2}` in
its input starts a node, and `kill ID` ends the one with that id, without a farewell. Each
is answered with one line, the id of the node.
"""

import json
import sys

from ray.cluster_utils import Cluster

SMALL = {"num_cpus": 8, "object_store_memory": 100_000_000}


def main() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**SMALL, "num_cpus": 0, "include_dashboard": False},
    )
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            command, _, argument = line.strip().partition(" ")
            if command == "add":
                print(
                    cluster.add_node(**SMALL, **json.loads(argument)).node_id,
                    flush=True,
                )
            else:
                (node,) = [n for n in cluster.worker_nodes if n.node_id == argument]
                cluster.remove_node(node, allow_graceful=False)
                print(argument, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
