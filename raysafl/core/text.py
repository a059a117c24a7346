"""text."""

import difflib
import re
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Say what was meant: `did you mean 'fedavg'? (known: ...)`."""
    names = sorted(known)
    lower = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean '{lower[close[0]]}'? " if close else ""
    return f"{hint}(known: {', '.join(names)})"


def redacted(text: str) -> str:
    """A URI, or a message with URIs in it, without user, password and query."""
    return re.sub(r"(://[^\s?]*)\?[^\s'\"]*", r"\1", re.sub(r"://[^/\s]*@", "://", text))


def size(count: float) -> str:
    """Bytes in words: `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
