"""The message with which something is refused."""

from typing import Any

import pytest


def refused(make: Any, *args: Any, **options: Any) -> str:
    """Return the message of the ValueError that a call ends with."""
    with pytest.raises(ValueError) as caught:
        make(*args, **options)
    return str(caught.value)
