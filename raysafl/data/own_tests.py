"""Test samples of each client's own, held out of its training samples."""

import numpy as np

from raysafl.core.client_indices import ClientIndices, StoredIndices
from raysafl.core.randomness import Key


def hold_out(
    clients: ClientIndices, share: float, key: Key
) -> tuple[StoredIndices, StoredIndices]:
    """Take test samples out of each client's samples, uniformly without replacement.

    Of a client's n samples, max(1, floor(share * n)) become its test samples.

    Args:
        clients: The positions of each client's samples.
        share: The share that is taken, in (0, 1).
        key: The source of randomness of the split.

    Returns:
        The positions that each client trains on, and those that it is tested on.

    Raises:
        ValueError: A client holds fewer than two samples, or two clients hold the same
            sample, so that one would train on what the other is tested on.
    """
    sizes = clients.sizes
    few = np.flatnonzero(sizes < 2)
    if len(few):
        raise ValueError(
            f"own_tests={share:g} leaves client {few[0]} no test sample beside one to "
            f"train on: it holds {sizes[few[0]]} samples, and needs 2. Give it more by "
            "another partition or fewer clients, or leave own_tests out"
        )
    samples = clients.concatenated()
    if len(np.unique(samples)) < len(samples):
        raise ValueError(
            f"own_tests={share:g} needs clients that hold different samples, and under "
            "this partition two clients hold the same one, so a client would train on "
            "another's test samples; take another partition, or leave own_tests out"
        )
    # Rounding errors of the product do not count.
    counts = np.maximum(1, np.floor(share * sizes + 1e-9).astype(np.int64))
    counts = np.minimum(counts, sizes - 1)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # A client's first samples in a random order are its test samples.
    order = np.lexsort((key("own tests").random(len(samples)), owner))
    place = np.arange(len(samples)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_test = np.empty(len(samples), bool)
    is_test[order] = place < counts[owner]
    kept = StoredIndices(samples[~is_test], sizes - counts)
    return kept, StoredIndices(samples[is_test], counts)
