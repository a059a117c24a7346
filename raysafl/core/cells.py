"""The ids of cells: to which configuration and seed a result belongs.

A cell is one configuration with one seed. A run of R replicates is R cells, and its own id
is that of the first one. So a run that is given more seeds keeps its id and its cells.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# The fields of a run's configuration that say which cells it has.
REPLICATES = "replicates"
SEED = "seed"


def cell_ids(config: Mapping[str, Any]) -> list[str]:
    """Return the ids of a run's cells, in the order of its replicates.

    An id is the first 12 hexadecimal digits of a SHA-256 of the configuration, without
    `replicates` and `seed`, and of the cell's seed.

    Args:
        config: the run's configuration as JSON values.

    Example:
        >>> three = cell_ids({"rounds": 20, "replicates": 3, "seed": 7})
        >>> three[1:] == cell_ids({"rounds": 20, "replicates": 2, "seed": 8})
        True
    """
    common = {
        name: value for name, value in config.items() if name not in (REPLICATES, SEED)
    }
    text = json.dumps(common, sort_keys=True, separators=(",", ":"))
    shared = hashlib.sha256(text.encode())
    first = config.get(SEED, 0)
    found = []
    for seed in range(first, first + config.get(REPLICATES, 1)):
        own = shared.copy()
        own.update(str(seed).encode())
        found.append(own.hexdigest()[:12])
    return found
