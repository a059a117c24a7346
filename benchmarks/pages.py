"""The pages that show what was measured, from the JSON files beside this module.

README.md and docs/scale.md have tables between markers; scaling.md and scaling.png are
written as a whole.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks import prediction, tables
from benchmarks.found import Found
from benchmarks.scaling_report import figure, scaling

HERE = Path(__file__).parent
SCALING = """# How raysafl scales

Made by `python -m benchmarks render`; do not edit. Clients hold 60 MNIST images each (drawn from the training set, `Overlapping`) and take one epoch in batches of 20; no evaluation. Median (lowest-highest) over processes, each with one torch thread.

![Measured curves](scaling.png)

{}
"""  # noqa: E501


def read(folder: Path, name: str) -> Found | None:
    """Read what was measured.

    Raises:
        ValueError: the file is of a command that was only tried.
    """
    found = Found.read(folder / f"{name}.json")
    if found is not None and found.origin.get("dry"):
        raise ValueError(
            f"{name}.json is of a dry run (--dry), which measures nothing: remove it, or "
            f"write it with `python -m benchmarks {name.partition('-')[0]}`"
        )
    return found


def section(folder: Path, name: str, write: Callable[[Found], str]) -> str:
    """Return what a file holds as Markdown; if there is none, a sentence that says so."""
    found = read(folder, name)
    return write(found) if found else f"Not measured yet: no `{name}.json` here."


def of_readme(folder: Path) -> dict[str, str]:
    """Return the sections of README.md."""
    return {
        "cpu": section(folder, "cpu", tables.cpu),
        "gpu": section(folder, "gpu", tables.gpu),
        "rivals": section(folder, "rivals", tables.rivals),
        "engines-cpu": section(folder, "engines-cpu", tables.engines),
        "engines-cuda": section(folder, "engines-cuda", tables.engines),
    }


def of_scale(folder: Path) -> dict[str, str]:
    """Return the sections of docs/scale.md."""
    files = [read(folder, name) for name in ("scaling", "cpu")]
    scaling, cpu = (found.measures if found else {} for found in files)
    if lacking := prediction.missing(scaling, cpu):
        text = f"Not measured yet: {', '.join(lacking)}."
        return dict.fromkeys(("measured", "predicted", "limits"), text)
    measured, quantities, limits = prediction.tables(scaling, cpu)
    sweeps = ("small runs", "runs of S1")
    table = tables.table
    return {
        "measured": table(("number", "value", "from"), measured),
        "predicted": table(("quantity", "arithmetic", *sweeps), quantities),
        "limits": table(("what breaks", "limit", *sweeps, "what to do then"), limits),
    }


def filled(file: Path, sections: dict[str, str]) -> str:
    """Return the text of a page with every section between its markers made anew."""
    text = file.read_text()
    for name, section in sections.items():
        begin = f"<!-- {name} -->\n"
        end = f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        assert found and end in rest, f"{file.name} has no section {name}"
        text = f"{head}{begin}{section}\n{end}{rest.partition(end)[2]}"
    return text


def pages(folder: Path = HERE) -> dict[Path, str]:
    """Return the text of each page as it should be.

    Args:
        folder: the folder of the JSON files and of scaling.md.
    """
    readme = HERE / "README.md"
    scale = HERE.parent / "docs" / "scale.md"
    found = section(folder, "scaling", scaling)
    return {
        readme: filled(readme, of_readme(folder)),
        scale: filled(scale, of_scale(folder)),
        folder / "scaling.md": SCALING.format(found),
    }


def render(check: bool = False) -> None:
    """Write the pages and the figure; or only check whether the pages are up to date.

    Raises:
        ValueError: a page is not up to date.
    """
    for file, text in pages().items():
        if check and file.read_text() != text:
            raise ValueError(f"{file.name} is old: run `python -m benchmarks render`")
        file.write_text(text)
    found = read(HERE, "scaling")
    if found and not check:
        (HERE / "scaling.png").write_bytes(figure(found.measures))
