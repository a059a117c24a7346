"""Loops that numba compiles, where one pass is faster than calls of numpy or torch.

numba's compiled functions have no types that mypy knows, and coverage cannot see them
run. So each of them is marked `# type: ignore[no-untyped-def]` and `# pragma: no cover`
here, and typed modules outside this folder call them.
"""
