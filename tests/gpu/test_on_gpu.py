"""Training on a real GPU against the CPU: `pytest -m gpu` (`-n 8 --dist load` is faster)."""

import functools
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from helpers.cuda_matrix import ENGINES, assert_equal_in_float32, play, small_run
from helpers.matrix import ALGORITHMS, WRAPPERS
from helpers.packs import (
    Played,
    alone,
    assert_same,
    cells_of,
    fair,
    judged,
    mixed,
    together,
)

from raysafl import CNN, MLP, FedAvg, Logistic, Model, Run
from raysafl.cli.device_check import check_gpu
from raysafl.runtime.in_process import Worker
from raysafl.simulation.lockstep import Lockstep
from raysafl.simulation.simulation import Simulation
from raysafl.training.resident import Resident

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

EVERY = {
    type(algorithm).__name__: algorithm
    for algorithm in (*ALGORITHMS, *(wrap(FedAvg()) for wrap in WRAPPERS.values()))
}
EACH = [(model, engine) for model, engines in ENGINES.items() for engine in engines]


@functools.cache
def on_cpu(model: str, algorithm: str) -> Played:
    """Carry out a small run on the CPU, one client after the other."""
    return play(small_run(model, EVERY[algorithm]), "cpu", "loop")


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize(("model", "engine"), EACH)
def test_every_algorithm_model_and_engine_equals_the_loop_on_the_cpu(
    model: str, engine: str, algorithm: str
) -> None:
    found = play(small_run(model, EVERY[algorithm]), "cuda", engine)
    assert_equal_in_float32(found, on_cpu(model, algorithm))


@pytest.mark.parametrize(("model", "engine"), EACH)
def test_the_same_run_twice_has_the_same_bits(model: str, engine: str) -> None:
    first, second = (play(small_run(model), "cuda", engine) for _ in range(2))
    assert_same(first, second, exact=True)


@pytest.mark.parametrize(
    ("engine", "model"),
    [("linear", Logistic()), ("vmap", MLP(hidden=[8])), ("graph", MLP(hidden=[8]))],
)
def test_a_pack_equals_each_of_its_runs_alone_on_the_cpu_and_itself_to_the_bit(
    tiny: Run, engine: str, model: Model
) -> None:
    base = tiny.replace(model=model)
    runs = {**mixed(base, model), **judged(base, model), **fair(base)}
    dataset = base.data.load()
    results = []
    for _ in range(2):
        work = Worker(cells_of(runs), dataset, model, device="cuda", engine=engine)
        found, failed = together(runs, Lockstep[str](work))
        assert not failed
        results.append(found)
    for name, run in runs.items():
        assert_same(results[0][name], results[1][name], exact=True)
        assert_same(results[0][name], alone(run, "loop"), exact=False)


@pytest.mark.parametrize(
    ("model", "engine"), [("logistic", "linear"), ("CNN", "graph"), ("CNN", "loop")]
)
@pytest.mark.parametrize("is_resident", [True, False])
def test_fifty_packs_need_no_more_memory_than_five(
    model: str, engine: str, is_resident: bool
) -> None:
    run = small_run(model)
    dataset = run.data.load()
    kept = Resident() if is_resident else None
    used = []
    for _ in range(50):
        work = Worker(
            run.cells,
            dataset,
            run.model,
            device="cuda",
            engine=engine,
            resident=kept,
        )
        simulation = Simulation(run, work)
        while not simulation.done:
            simulation.step()
        del work, simulation
        used.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(used[4:])) == 1


def test_doctor_finds_that_each_gpu_trains_as_the_cpu_does() -> None:
    for index in range(torch.cuda.device_count()):
        assert "a training step equals the CPU's" in check_gpu(index)


@pytest.fixture
def _little_memory() -> Iterator[None]:
    """Let torch take a quarter of a GiB more in this process."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    taken = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((taken + 2**28) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("engine", ["vmap", "graph"])
def test_a_stack_that_does_not_fit_is_halved_and_has_the_numbers_of_the_cpu(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    # The activations of one client's samples fit, and those of six clients do not.
    run = small_run("CNN").replace(
        {
            "model": CNN(channels=[4096], hidden=8),
            "participation.m": 6,
            "local.batch_size": 400,
            "rounds": 1,
        }
    )
    found = play(run, "cuda", engine)
    assert "clients stacked" in caplog.text
    assert_equal_in_float32(found, play(run, "cpu", "loop"))


# What follows is settled for a whole process, or may break one.

PRECISION = """
import torch
BEFORE
from raysafl.training.device import prepare_device
prepare_device("cuda", "PRECISION")
g = torch.Generator().manual_seed(0)
x = torch.randn(8, 64, 32, 32, generator=g)
w = torch.randn(64, 64, 3, 3, generator=g)
a = torch.randn(512, 512, generator=g)
conv = torch.nn.functional.conv2d
pairs = {
    "product": (a.double() @ a.double(), (a.cuda() @ a.cuda()).cpu()),
    "convolution": (conv(x.double(), w.double()), conv(x.cuda(), w.cuda()).cpu()),
}
for name, (exact, found) in pairs.items():
    off = float((found - exact).norm() / exact.norm())
    print(name, off)
    is_float32 = off < 5e-6
    assert is_float32 == ("PRECISION" == "float32"), (name, off)
"""
BEFORE = {
    "nothing": "",
    "the old flags": "torch.backends.cuda.matmul.allow_tf32 = True\n"
    "torch.backends.cudnn.allow_tf32 = True",
    "the new setting": "torch.backends.fp32_precision = 'tf32'",
}


def in_a_process(code: str) -> str:
    """Run code in a fresh process, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("before", BEFORE)
def test_factors_are_rounded_only_if_the_precision_asks_for_it_whatever_was_set_before(
    before: str, precision: str
) -> None:
    if precision == "tf32" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    code = PRECISION.replace("PRECISION", precision).replace("BEFORE", BEFORE[before])
    in_a_process(code)


FAILING = """
import sys
sys.path[:0] = ["tests", "."]
import torch
from torch import nn
from helpers.cuda_matrix import play, small_run
from raysafl import Model

class Uploading(Model):
    def build(self, input_shape, num_classes):
        class Net(nn.Linear):
            def forward(self, x):
                return super().forward(x.flatten(1)) * torch.tensor(2.0).to(x.device)
        return Net(36, num_classes)

try:
    play(small_run("CNN").replace(model=Uploading()), "cuda", "graph")
except ValueError as error:
    print(error)
else:
    raise SystemExit("it was recorded")
torch.cuda.empty_cache()
first = play(small_run("CNN"), "cuda", "graph")
second = play(small_run("CNN"), "cuda", "graph")
torch.cuda.empty_cache()
assert all(map(torch.equal, first[1], second[1]))
"""


def test_after_a_recording_that_failed_the_process_records_and_frees_memory() -> None:
    assert "cannot be recorded as a CUDA graph" in in_a_process(FAILING)
