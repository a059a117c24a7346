"""One safetensors file: tensors by name, JSON values, and a SHA-256 of both.

The values are in the file's metadata under the name `raysafl`, and the digest is one of
them: safetensors writes several metadata in no certain order.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

# Everything that reading a damaged file may raise.
DAMAGE = (
    safetensors.SafetensorError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
# The bytes of the longest header that safetensors reads.
MOST_HEADER = 100_000_000


def to_bytes(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a file.

    Args:
        values: JSON-like values by name, none of them with the name `sha256`.
        tensors: the tensors by name, on any device.

    Example:
        >>> from_bytes(to_bytes({"round": 3}, {"w": torch.ones(2)}))
        ({'round': 3}, {'w': tensor([1., 1.])})
    """
    alone = _alone(tensors)
    text = json.dumps({**values, "sha256": _digest(values, alone)})
    return safetensors.torch.save(alone, metadata={"raysafl": text})


def _alone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU none of which shares memory, as safetensors asks for.

    Only those that do are copied: the state of a run may take half of the memory.
    """
    found = dict[str, Tensor]()
    for name, tensor in tensors.items():
        found[name] = tensor.detach().cpu().contiguous()
    memory = {name: own.untyped_storage() for name, own in found.items()}
    uses = Counter(own.data_ptr() for own in memory.values())
    for name, own in found.items():
        if own.nbytes != memory[name].nbytes() or uses[memory[name].data_ptr()] > 1:
            found[name] = own.clone()
    return found


def from_bytes(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the values and the tensors of a file.

    Raises:
        DAMAGE: the content is damaged, or was not written by `to_bytes`.
    """
    tensors = safetensors.torch.load(content)
    values = _header_values(content)
    if values.pop("sha256") != _digest(values, tensors):
        raise ValueError("its checksum does not fit its content")
    return values, tensors


def _header_values(content: bytes) -> dict[str, Any]:
    """Read the values, with the digest, in the header of a safetensors file."""
    source = io.BytesIO(content)
    # The file begins with the header's length (8 bytes) and the header (JSON).
    header_size = int.from_bytes(source.read(8), "little")
    if header_size > MOST_HEADER:
        raise ValueError(f"its header would have {header_size} bytes")
    metadata = json.loads(source.read(header_size))["__metadata__"]
    values = json.loads(metadata["raysafl"])
    if not isinstance(values, dict):
        raise TypeError("its metadata are no values by name")
    return values


def _digest(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of everything in a file, by which damage is noticed."""
    sums = hashlib.sha256(json.dumps(values).encode())
    for name, value in sorted(tensors.items()):
        sums.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        sums.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sums.hexdigest()
