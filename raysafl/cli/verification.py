"""`raysafl verify`: check a sweep's folder, and make its report anew after a repair."""

from rich.console import Console

from raysafl.report.write import write_report
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify


def verify_folder(store: Store, mend: bool, console: Console) -> int:
    """Print what is wrong in a sweep's folder, one line per finding.

    Args:
        store: the folder of the sweep.
        mend: whether to forget what is damaged.
        console: where it is printed.

    Returns:
        How many findings are left.
    """
    findings = verify(store)

    def say(line: str) -> None:
        console.print(f"{store.path}: {line}", markup=False, soft_wrap=True)

    for finding in findings:
        say(str(finding))
    if findings and mend:
        for finding in repair(store, findings):
            say(f"forgot {finding.where}")
        # The report may still show what was forgotten.
        if (
            store.file("report.html").is_file()
            and store.file("manifest.json").is_file()
        ):
            write_runs_table(store)
            write_report(store)
        findings = verify(store)
    elif findings:
        say("`raysafl verify --repair` forgets what is damaged")
    if not findings:
        say("clean")
    return len(findings)
