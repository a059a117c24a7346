"""Samples that are held back: validation samples, and test samples of each client's own."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raysafl.core.client_indices import ClientIndices, Ints, StoredIndices
from raysafl.core.component import Component
from raysafl.core.problem import SERVER
from raysafl.core.randomness import Key

PURPOSE = "validation"


class Validation(Component):
    """Shares of the training samples by which models are judged and never trained.

    Of n samples, the share s are the floor(s * n) that are drawn uniformly without
    replacement. They are taken out of everybody's training samples. So no client and no
    server trains on a validation sample, also where the server holds copies of the
    clients' samples or where clients overlap. They are never test samples.

    The server's share is one of its own data D0. If the server holds no data, it is a
    share of the whole training set, and is drawn before the partition spreads the rest
    over the clients. A share of the clients is one of each client's samples; a client
    with fewer than 1 / s of them gives none, so that it can train.

    Replicates that share a partition share the validation samples too.

    Raises:
        ValueError: Both shares are 0.

    Example:
        >>> import raysafl as fl
        >>> data = fl.Federation(
        ...     dataset=fl.Digits(), clients=10, validation=fl.Validation(server=0.1)
        ... )
        >>> dataset = data.load()
        >>> split = data.split(dataset, seed=0)
        >>> len(dataset.train), len(split.validation), int(split.clients.sizes.sum())
        (1437, 143, 1294)
    """

    server: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the server's samples, or of the whole training set if the "
        "server holds none.",
    )
    clients: float = Field(
        default=0.0, ge=0, lt=1, description="Share of each client's samples."
    )

    @model_validator(mode="after")
    def _some(self) -> "Validation":
        if not self.server and not self.clients:
            raise ValueError(
                "both shares are 0, so there would be no validation samples; give "
                "server=0.1 or clients=0.1, for example, or leave validation out"
            )
        return self

    def drawn(self, samples: Ints, whose: str, key: Key) -> Ints:
        """Draw the server's share of some samples.

        Args:
            samples: The positions of the samples.
            whose: Who holds them, for the message.
            key: The source of randomness of the split.

        Raises:
            ValueError: The share is less than one sample.
        """
        count = int(_counts_of_share(self.server, np.int64(len(samples))))
        if not count:
            raise ValueError(
                f"validation: the share server={self.server:g} of {whose}, which is "
                f"{len(samples)} samples, is less than one sample; give a larger share"
            )
        rng = key(PURPOSE, SERVER)
        return np.sort(rng.choice(samples, count, replace=False))

    def drawn_from_clients(self, clients: ClientIndices, key: Key) -> Ints:
        """Draw the clients' share of each client's samples.

        Args:
            clients: The positions of each client's samples.
            key: The source of randomness of the split.

        Returns:
            The positions that were drawn, sorted, each once.

        Raises:
            ValueError: No client holds enough samples to give one.
        """
        sizes = clients.sizes
        counts = _counts_of_share(self.clients, sizes)
        if not counts.any():
            raise ValueError(
                f"validation: the share clients={self.clients:g} takes no sample of any "
                f"client, because the largest holds {sizes.max(initial=0)}; give a "
                "larger share"
            )
        is_drawn = _draw_of_each(sizes, counts, key(PURPOSE))
        return np.unique(clients.concatenated()[is_drawn])


def without(clients: ClientIndices, taken: Ints) -> ClientIndices:
    """Return the samples of each client without those that became validation samples.

    Args:
        clients: The positions of each client's samples.
        taken: The positions of the validation samples.

    Raises:
        ValueError: A client that held samples is left with none.
    """
    samples = clients.concatenated()
    kept = ~np.isin(samples, taken)
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    sizes = np.bincount(owner[kept], minlength=len(clients))
    if (is_emptied := (sizes == 0) & (clients.sizes > 0)).any():
        raise ValueError(
            f"validation leaves client {is_emptied.argmax()} nothing to train on: all of its "
            "samples are validation samples; lower the shares of validation"
        )
    return StoredIndices(samples[kept], sizes)


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
    counts = np.maximum(1, _counts_of_share(share, sizes))
    is_test = _draw_of_each(sizes, counts, key("own tests"))
    kept = StoredIndices(samples[~is_test], sizes - counts)
    return kept, StoredIndices(samples[is_test], counts)


def _counts_of_share(share: float, sizes: Ints | np.int64) -> Ints:
    """Return floor(share * size), where rounding errors of the product do not count."""
    found: Ints = np.floor(share * sizes + 1e-9).astype(np.int64)
    return np.minimum(found, np.maximum(sizes - 1, 0))


def _draw_of_each(
    sizes: Ints, counts: Ints, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw so many samples of each client.

    Args:
        sizes: [N] how many samples each client holds.
        counts: [N] how many are drawn of them.
        rng: the only source of randomness.

    Returns:
        Whether each sample is drawn, client after client.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # A client's first samples in a random order are drawn.
    order = np.lexsort((rng.random(len(owner)), owner))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_drawn = np.empty(len(owner), bool)
    is_drawn[order] = place < counts[owner]
    return is_drawn
