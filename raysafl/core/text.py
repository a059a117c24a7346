"""Text for people: nearest names, numbers of bytes, no control characters."""

import difflib
import re
from collections.abc import Iterable

# Characters that move a terminal's cursor, change its title or turn text round.
CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]"
)


def printable(text: str) -> str:
    """Return a text without the control characters that a stranger may have put into it."""
    return CONTROL.sub("", text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest a known name for one that is unknown, as the end of an error message.

    Args:
        name: the name that was given.
        known: all names that would have been right.

    Returns:
        The most similar name, if one is similar enough, and all known names.

    Example:
        >>> nearest("fedavgg", ["FedAvg", "FedProx"])
        "did you mean 'FedAvg'? (known: FedAvg, FedProx)"
        >>> nearest("xyz", ["FedAvg", "FedProx"])
        '(known: FedAvg, FedProx)'
    """
    names = sorted(known)
    by_lower_case = {known_name.lower(): known_name for known_name in names}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.5)
    hint = f"did you mean '{by_lower_case[close[0]]}'? " if close else ""
    return f"{hint}(known: {', '.join(names)})"


def format_bytes(count: float) -> str:
    """Write a number of bytes with three digits and a unit, in decimal multiples.

    Example:
        >>> format_bytes(3_400_000)
        '3.4 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
