"""Secrets: a URI that holds a password is refused, and the environment's are hidden."""

import os
import re
from functools import lru_cache

# What stands in place of a secret.
HIDDEN = "***"
# A shorter value may be a part of ordinary words, and is not hidden.
SHORTEST_SECRET = 6
# How the name of a variable ends whose value is a secret.
SECRET_NAME = re.compile(
    r"(?i:[_-]key|token|secret|password|passwd|passphrase|_pwd|connection_string)$"
)
# A URI with `user:password@`. A password may hold a raw `/` or `@`.
WITH_PASSWORD = re.compile(r"([\w+.-]+:/+|//)[^/@]*:.*@", re.DOTALL)


def refuse_password(uri: str) -> str:
    """Return a URI, or any other text, unless it is a URI that holds a password.

    Raises:
        ValueError: it holds one. The message does not show it.
    """
    if found := WITH_PASSWORD.match(uri):
        raise ValueError(
            f"the URI {found[1]}{HIDDEN} holds a password, which `ps`, the shell's history and "
            "the results would show: leave out user:password@, and give it by variables "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, PGPASSWORD) or in a file (~/.aws/credentials, ~/.pgpass)"
        )
    return uri


def redacted(text: str) -> str:
    """Hide the values of the environment's secrets in a text that others may read.

    They are those of variables whose names end like a secret's, such as `HF_TOKEN` and
    `AWS_SECRET_ACCESS_KEY`, and that have six letters or more.
    """
    return _secrets(tuple(os.environ.items())).sub(HIDDEN, text)


# The texts of thousands of runs are redacted in one environment.
@lru_cache(maxsize=8)
def _secrets(environment: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """Return a pattern of the environment's secrets, of which a longer one goes first."""
    values = {value for name, value in environment if SECRET_NAME.search(name)}
    found = sorted((v for v in values if len(v) >= SHORTEST_SECRET), key=len)
    # Without one, the pattern matches nothing.
    return re.compile("|".join(map(re.escape, reversed(found))) or "(?!)")
