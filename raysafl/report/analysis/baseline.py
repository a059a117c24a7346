"""The runs that others are compared with."""

from collections.abc import Mapping

from raysafl.storage.manifest import Label, Manifest


def baselines(manifest: Manifest, labels: Mapping[str, Label]) -> list[str]:
    """Return the run that each entry of a sweep differs from in these labels alone.

    It is empty for entries that have these labels themselves, and where there is no such
    run.

    Args:
        labels: the labels of a baseline on some axes.
    """
    # Entries are found by their labels, in any order of the axes.
    keys = [frozenset(entry.labels.items()) for entry in manifest.entries]
    of_key = dict(zip(keys, (entry.run_id for entry in manifest.entries), strict=True))
    others = [frozenset({**e.labels, **labels}.items()) for e in manifest.entries]
    pairs = zip(keys, others, strict=True)
    return ["" if own == other else of_key.get(other, "") for own, other in pairs]
