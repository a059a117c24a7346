"""The machines of a Ray cluster: which GPUs a sweep uses there, and whether torch sees them."""

import math
import os
import platform
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from raysafl.cluster.hardware import Hardware
from raysafl.cluster.provenance import (
    OtherPackageError,
    check_package,
    package_digest,
)
from raysafl.version import __version__

# If this variable is "1" on a node, the node's GPUs are only numbers to Ray, and clients
# train on the CPU.
LOGICAL_GPUS = "RAYSAFL_LOGICAL_GPUS"
# How long nodes have to answer, before a sweep and when `raysafl doctor` asks. One that is
# late, such as one that is still reading torch from a slow disk, is not waited for.
ANSWER_SECONDS = 30.0
DOCTOR_SECONDS = 120.0


def are_logical() -> bool:
    """Whether the GPUs of this node are only numbers to Ray."""
    return os.environ.get(LOGICAL_GPUS) == "1"


def in_words(count: float) -> str:
    """Write a number of GPUs: "1 GPU" or "2 GPUs"."""
    return "1 GPU" if count == 1 else f"{count:g} GPUs"


def num_gpus() -> int:
    """Return how many GPUs torch sees in this process, and can reach."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_unseen() -> str:
    """Return why torch sees no CUDA device in this process; empty if it sees one."""
    if torch.cuda.is_available():
        return ""
    try:
        torch.cuda.init()
    # torch raises an AssertionError if it was built without CUDA.
    except (RuntimeError, AssertionError) as error:
        # The first sentence is the reason; the others say where drivers are to be had.
        return re.split(r"\.?\n|\. |\.$", str(error))[0]
    return "it does not say why"


def unseen_message(gpus: str, why: str) -> str:
    """Say that Ray counts GPUs which torch does not see, and what to do.

    Args:
        gpus: which GPUs, of which node.
        why: the reason that torch gives there.
    """
    return (
        f"{gpus}, but torch {torch.__version__} sees no CUDA device there ({why}). "
        "Install a driver and a torch that fit each other (`raysafl doctor` tells "
        "whether they do), or run with gpus=0 (--gpus 0; or, if the GPUs are only numbers to "
        f"Ray, as in tests, set {LOGICAL_GPUS}=1 on every node to train on the CPU)"
    )


def used_note(hardware: Hardware, trials: int, count: float) -> str:
    """Say which GPUs a sweep uses; empty if it trains on CPUs.

    Args:
        hardware: what a trial runs on.
        trials: how many trials run at the same time.
        count: how many GPUs there are.
    """
    share = hardware.gpu_share
    if not share:
        return ""
    used = math.ceil(share * hardware.actors * trials - 0.01)
    of = f"{used} of {in_words(count)}" if used < count else in_words(count)
    each = "a GPU" if share == 1 else f"{share:.2g} of a GPU"
    return f"Trains on {of}: each client actor has {each} (gpus=0, --gpus 0, trains on CPUs)"


class Machine(NamedTuple):
    """What a node says of itself.

    Args:
        gpus: the names of the GPUs that torch sees.
        gpu_memory: the bytes of memory of the smallest; None if Ray counts none, or if its
            GPUs are only numbers.
        memory: bytes of memory.
        version: raysafl's version.
        package: the digest of raysafl's files.
        problem: why a sweep cannot train on its GPUs; empty if it can.
    """

    gpus: list[str]
    gpu_memory: int | None
    memory: int
    version: str
    package: str
    problem: str


def ask_nodes(
    nodes: list[dict[str, Any]], seconds: float = ANSWER_SECONDS
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Ask each node of the running Ray what it is, and yield each node with its answer.

    The answer is that of `machine_here`, an exception if that failed there, or None if the
    node was late. A node need not be free to be asked.

    Args:
        nodes: some of those that `ray.nodes()` lists.
        seconds: how long the nodes have to answer.
    """
    # Imported here, because this module is also for machines without Ray.
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # The process of a task that has looked at the GPUs does not notice any more which of
    # them Ray gives it later. So it ends with the task, and hosts no client actor.
    remote: Any = ray.remote(num_cpus=0, num_gpus=0, max_calls=1)(machine_here)
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


def check_seen() -> int | None:
    """Check that torch sees a GPU on every node of the running Ray that counts some.

    So a sweep that needs GPUs ends before it begins, instead of failing trial by trial.
    A node that is lost meanwhile, or that does not answer in time, is passed over: its
    client actors look themselves.

    Returns:
        The bytes of memory of the smallest GPU; None if no node has told.

    Raises:
        ValueError: torch sees no CUDA device on a node.
    """
    import ray

    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU")]
    memories: list[int] = []
    for _, machine in ask_nodes(nodes):
        if not isinstance(machine, Machine):
            continue
        if machine.problem:
            raise ValueError(machine.problem)
        if machine.gpu_memory is not None:
            memories.append(machine.gpu_memory)
    return min(memories, default=None)


def machine_here(count: float) -> Machine:
    """Look at this node.

    It runs on each node that is asked, in a process to which Ray gives no GPU, and which
    therefore sees all that Ray's own processes see.

    Args:
        count: how many GPUs Ray counts here.
    """
    import psutil

    names = [torch.cuda.get_device_name(index) for index in range(num_gpus())]
    problem = ""
    gpu_memory = None
    # Versions of Ray that hide all GPUs from such a process set this to nothing.
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    if count and are_logical():
        names = ["only numbers"]
    elif count and not is_hidden:
        if why := why_unseen():
            gpus = f"Ray counts {in_words(count)} on {platform.node()}"
            problem = unseen_message(gpus, why)
        else:
            gpu_memory = smallest_memory()
    memory = psutil.virtual_memory().total
    return Machine(names, gpu_memory, memory, __version__, package_digest(), problem)


def smallest_memory() -> int:
    """Return the bytes of memory of the smallest GPU that torch sees here."""
    properties = torch.cuda.get_device_properties
    return min(properties(i).total_memory for i in range(torch.cuda.device_count()))


def own_share() -> float:
    """Return the share of its GPU that Ray gave this actor: 1 if it is whole."""
    import ray

    resources = ray.get_runtime_context().get_assigned_resources()
    return min(1.0, float(resources.get("GPU", 1.0)))


def own_device() -> str:
    """Return the device of this actor: "cuda" if Ray gave it a GPU, else "cpu".

    Raises:
        ValueError: Ray gave a GPU that torch does not see. Training on the CPU instead,
            without saying so, would waste the GPU.
    """
    import ray

    given = ray.get_gpu_ids()
    if not given or are_logical():
        return "cpu"
    if why := why_unseen():
        gpu = ", ".join(map(str, given))
        gave = f"Ray gave GPU {gpu} of {platform.node()} to a client actor"
        raise ValueError(unseen_message(gave, why))
    return "cuda"


def problems_of(answer: Any) -> list[str]:
    """Say what keeps a sweep from using a node.

    Args:
        answer: what `ask_nodes` gives as the node's answer.
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
    try:
        check_package("It", answer.package, package_digest())
    except OtherPackageError as error:
        problems.append(str(error))
    return problems
