"""Text for people: nearest names, numbers of bytes, URIs without secrets."""

import difflib
import re
from collections.abc import Iterable


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


def redacted(text: str) -> str:
    """Remove user, password and query from every URI in a text.

    Example:
        >>> redacted("cannot reach s3://key:secret@bucket/folder?token=1")
        'cannot reach s3://bucket/folder'
    """
    without_user = re.sub(r"://[^/\s]*@", "://", text)
    return re.sub(r"(://[^\s?]*)\?[^\s'\"]*", r"\1", without_user)


def format_bytes(count: float) -> str:
    """Write a number of bytes with a unit, in decimal multiples.

    Example:
        >>> format_bytes(3_400_000)
        '3.4 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
