"""Lines and files that say by a SHA-256 whether they are whole.

A sealed object is a JSON object whose first field, `sha256`, is the digest of the object
without that field. The manifest is one, the ledger consists of lines that are, and the
file of a checkpoint begins with one.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})", ')


def seal(body: bytes) -> bytes:
    """Return the text of a JSON object, which is not empty, with its seal.

    Example:
        >>> unsealed(seal(b'{"run_id": "a"}'))
        b'{"run_id": "a"}'
    """
    return b'{"sha256": "%s", ' % sha256_of(body).encode() + body[1:]


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Return fields as a sealed line, without the end of the line."""
    return seal(json.dumps(fields).encode())


def unsealed(content: bytes) -> bytes:
    """Return the text of a sealed JSON object, without its seal.

    Raises:
        ValueError: the content is not as it was written.
    """
    found = SEAL.match(content)
    if found is None:
        raise ValueError("it begins with no SHA-256")
    body = b"{" + content[found.end() :]
    if sha256_of(body) != found[1].decode():
        raise ValueError("its SHA-256 does not fit its content")
    return body


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
