"""What the whole test run shares: the user's settings, and names of what it records."""

import os

REAL_DATA = os.environ.get("RAYSAFL_DATA")
"""The folder of real datasets, if it is named."""

CHAOS = "chaos"
"""The name under which a test records a line for the summary."""
