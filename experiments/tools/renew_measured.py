"""Write the manifests and pages of results/measured anew from the experiment files.

    python -m experiments.tools.renew_measured [FOLDER...]

Run it from the repository's root; without arguments it renews every folder. The old
manifest is not read as one, so that it may be of an earlier format: only its `command` and
its entries are. A folder is refused whose runs are not entries of the experiment file any
more. Rows and ledgers stay as they are.
"""

import json
import sys

from experiments.tools.collect_measured import check, made_again
from experiments.tools.measured import MEASURED, experiment_file
from raysafl.report.write import write_report
from raysafl.storage.manifest import PAPER
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.experiment_file import load_sweep


def renew(folder):
    """Renew one folder, and return how many entries its manifest has."""
    store = Store(folder)
    before = json.loads((folder / "manifest.json").read_text())
    scale = before.get("scale", PAPER)
    sweep = load_sweep(MEASURED.parents[1] / experiment_file(before["name"])).at(scale)
    now = sweep.manifest().replace(command=before["command"])
    planned = {entry.run_id for entry in now.entries}
    if planned != {entry["run_id"] for entry in before["entries"]}:
        raise ValueError(f"{folder.name}: its runs are not those of {sweep.name} now")
    cells = {cell for entry in now.entries for cell in entry.cells}
    if gone := store.ledger().keys() - cells:
        raise ValueError(f"{folder.name}: no cells any more: {', '.join(gone)}")
    store.write_manifest(now)
    write_runs_table(store)
    write_report(store)
    for file in made_again(store, now):
        file.unlink(missing_ok=True)
    (folder / ".lock").unlink(missing_ok=True)
    check(folder)
    return len(now.entries)


def main():
    """Renew the folders that the command line names."""
    names = sys.argv[1:] or sorted(path.name for path in MEASURED.iterdir())
    for name in names:
        if (MEASURED / name / "manifest.json").is_file():
            print(f"{name}: {renew(MEASURED / name)} entries", flush=True)


if __name__ == "__main__":
    main()
