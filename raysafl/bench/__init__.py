"""What `raysafl bench` measures: raysafl against a plain PyTorch loop, and its own overheads."""

from raysafl.bench.suite import Plan, bench
from raysafl.bench.workloads import STANDARD

__all__ = ["STANDARD", "Plan", "bench"]
