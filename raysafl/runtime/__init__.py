"""Where work is done: in this process, or on Ray actors with the same results.

Nothing is imported here, because whoever wants a `Worker` (`in_process.py`) needs no Ray.
"""
