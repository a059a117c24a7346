"""The experiment file in docs/objectives.md, with an objective and data of a user's own."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "objectives.md"


def own_objective() -> str:
    """Return the code of the file."""
    return blocks()[1]


def blocks() -> list[str]:
    """Return the code of the page: a metric for a rare class, and the file."""
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
