"""The papers' tables as text that can be laid beside the page, and as data."""

import re

CELL = re.compile(r"(?P<mean>-?[\d.]+)(?:\+-(?P<std>[\d.]+))?(?:/(?P<ratio>[\d.]+))?$")


def label(text):
    """A label of a table: a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def cells(text):
    """{(row labels ..., column label): what is printed there}.

    The first line names the row axes, then `|`, then the columns; in each line below, row labels
    are parted by commas and what stands in the columns by spaces.
    """
    head, *lines = text.strip().splitlines()
    columns = [label(name) for name in head.split("|")[1].split()]
    found = {}
    for line in lines:
        left, right = line.split("|")
        row = [label(name.strip()) for name in left.split(",") if name.strip()]
        for column, printed in zip(columns, right.split(), strict=True):
            found[(*row, column)] = printed
    return found


def printed(text):
    """The numbers of a table whose cells read `mean`, `mean+-std` or either with `/ratio`."""
    found = {key: CELL.match(cell) for key, cell in cells(text).items()}
    return {
        key: (float(match["mean"]), float(match["std"]) if match["std"] else None)
        for key, match in found.items()
        if match
    }


def ratios(text):
    """The second number of each cell, behind the slash."""
    found = {key: CELL.match(cell) for key, cell in cells(text).items()}
    return {key: (float(match["ratio"]), None) for key, match in found.items() if match}


def dashes(text):
    """The cells that hold a `-` in place of a number."""
    return [key for key, cell in cells(text).items() if cell == "-"]
