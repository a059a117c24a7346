"""Asking every node of the running Ray something, and what `raysafl doctor` asks."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psutil
import torch

from raysafl.cluster.gpus import are_logical, num_gpus, seen_here
from raysafl.cluster.provenance import package_digest
from raysafl.version import __version__

# How long nodes have to answer, before a sweep and when `raysafl doctor` asks. One that is
# late, such as one that is still reading torch from a slow disk, is not waited for.
ANSWER_SECONDS = 30.0
DOCTOR_SECONDS = 120.0


def ask_nodes(
    question: Callable[[float], Any],
    nodes: list[dict[str, Any]],
    seconds: float = ANSWER_SECONDS,
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Ask each node of the running Ray a question, and yield each node with its answer.

    The answer is an exception if the question failed there, and None if the node was late.
    A node need not be free to be asked.

    Args:
        question: a function of raysafl, called on each node with the number of GPUs that
            Ray counts there.
        nodes: some of those that `ray.nodes()` lists.
        seconds: how long the nodes have to answer.
    """
    # Imported here, because gpus.py is also for machines without Ray.
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # The process of a task that has looked at the GPUs does not notice any more which of
    # them Ray gives it later. So it ends with the task, and hosts no client actor.
    remote: Any = ray.remote(num_cpus=0, num_gpus=0, max_calls=1)(question)
    asked = [
        # It takes no resources, and so it waits for none on a node that is full.
        remote.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                node["NodeID"], soft=False
            )
        ).remote(node["Resources"].get("GPU", 0.0))
        for node in nodes
    ]
    if not asked:
        return
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=seconds)
    for node, answer in zip(nodes, asked, strict=True):
        try:
            yield node, ray.get(answer) if answer in ready else None
        except ray.exceptions.RayError as error:
            yield node, error


class Machine(NamedTuple):
    """What a node says of itself.

    Args:
        gpus: the names of the GPUs that torch sees.
        memory: bytes of memory.
        version: raysafl's version.
        package: the digest of raysafl's files.
        problem: why a sweep cannot train on its GPUs; empty if it can.
    """

    gpus: list[str]
    memory: int
    version: str
    package: str
    problem: str


def machine_here(count: float) -> Machine:
    """Look at this node.

    Args:
        count: how many GPUs Ray counts here.
    """
    names = [torch.cuda.get_device_name(index) for index in range(num_gpus())]
    problem = seen_here(count).problem if count else ""
    memory = psutil.virtual_memory().total
    seen = ["only numbers"] if count and are_logical() else names
    return Machine(seen, memory, __version__, package_digest(), problem)


def problems_of(answer: Any) -> list[str]:
    """Say what keeps a sweep from using a node.

    Args:
        answer: what `ask_nodes` gives as the node's answer to `machine_here`.
    """
    if answer is None:
        return [
            f"It gave no answer in {DOCTOR_SECONDS:.0f} s. It was lost, or it is busy or reads "
            "torch from a slow disk"
        ]
    if not isinstance(answer, Machine):
        return [
            "raysafl cannot be used there: "
            f"{str(answer).strip().splitlines()[-1].strip()}. Install on it what is "
            "installed here"
        ]
    problems = [answer.problem] if answer.problem else []
    if answer.package != package_digest():
        problems.append(
            "It has another raysafl than this machine (another version, or files that were "
            "changed), and a sweep that is started here refuses it. Install the same on "
            "both; with a cluster file, `ray rsync-up FILE --all-nodes` copies it"
        )
    return problems
