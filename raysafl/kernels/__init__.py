"""Loops that numba compiles: whatever is faster as one pass than as calls of numpy and torch.

numba's compiled functions have no types that mypy knows, and coverage cannot see them run.
So each of them is marked `# type: ignore[no-untyped-def]` and `# pragma: no cover` here, and
typed modules outside this folder call them.
"""
