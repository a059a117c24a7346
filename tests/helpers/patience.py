"""How long a test waits for what must happen, before it fails.

It is long, as no test may fail only because the machine is busy: three processes of tests on
two cores may start a dozen of Ray's at once. Nothing waits so long where all is well.
"""

PATIENCE = 300.0
"""Seconds."""
