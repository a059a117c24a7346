"""Read the papers' tables, which the experiment files hold as text.

The text looks like the printed table, so that both can be compared by eye. Its first
line names the row axes, then `|`, then the column labels. In each line below, the row
labels are separated by commas and the entries by spaces:

    s, method | 10          5
    0, FedAvg | 92.67+-0.05 89.70+-0.23
    0, SAFARI | 92.60+-0.08 91.08+-0.13

An entry reads `mean`, `mean+-standard deviation`, or either of them followed by `/ratio`.
"""

import re

ENTRY = re.compile(r"(?P<mean>-?[\d.]+)(?:\+-(?P<std>[\d.]+))?(?:/(?P<ratio>[\d.]+))?$")


def parse_label(text):
    """Return a label: an int or a float if the text is one, else the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def entry_texts(text):
    """Return the text of every entry by its (row labels ..., column label)."""
    head, *lines = text.strip().splitlines()
    columns = [parse_label(name) for name in head.split("|")[1].split()]

    texts = {}
    for line in lines:
        left, right = line.split("|")
        row = [parse_label(name.strip()) for name in left.split(",") if name.strip()]
        for column, entry in zip(columns, right.split(), strict=True):
            texts[(*row, column)] = entry
    return texts


def _matched_entries(text):
    matches = {key: ENTRY.match(entry) for key, entry in entry_texts(text).items()}
    return {key: match for key, match in matches.items() if match}


def printed_numbers(text):
    """Return (mean, standard deviation or None) of every entry that holds a number."""
    return {
        key: (float(match["mean"]), float(match["std"]) if match["std"] else None)
        for key, match in _matched_entries(text).items()
    }


def printed_ratios(text):
    """Return (ratio, None) of every entry that has a second number behind a slash."""
    return {
        key: (float(match["ratio"]), None)
        for key, match in _matched_entries(text).items()
        if match["ratio"]
    }


def dashed_entries(text):
    """Return the labels of the entries that hold a dash in place of a number."""
    return [key for key, entry in entry_texts(text).items() if entry == "-"]
