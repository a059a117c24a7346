"""A document as Markdown, without its pictures."""

from collections.abc import Iterable, Sequence

from raysafl.report.pages.document import (
    Cell,
    Document,
    Facts,
    Grid,
    Lines,
    Pair,
    Part,
    Picture,
)


def markdown(document: Document) -> str:
    """Write a document as Markdown; sections that have only pictures are left out."""
    parts = [f"# {document.title}"]
    parts += [f"**{document.warning}**"] if document.warning else []
    parts += [document.lead] if document.lead else []
    for title, own in document.sections.items():
        texts = [_text(part) for part in own if not isinstance(part, Picture)]
        parts += [f"## {title}", *texts] if texts else []
    return "\n\n".join(parts) + "\n"


def _text(part: Part) -> str:
    if isinstance(part, Grid):
        left = len(part.head) if part.words else part.heads
        return pipe_table(part.head, part.rows, left)
    if isinstance(part, Facts):
        return "\n".join(f"- {name}: {value}" for name, value in part.facts.items())
    if isinstance(part, Lines):
        return "\n".join(f"- {_on_one_line(line)}" for line in part.lines)
    assert isinstance(part, str)
    return part.strip()


def pipe_table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], left: int = 1
) -> str:
    """Write a Markdown table, its first `left` columns flush left, the others flush right."""
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join(
        f"| {' | '.join(map(_cell, row))} |" for row in [head, rule, *rows]
    )


def _cell(cell: Cell) -> str:
    """Write an entry of a table, such as `56.18 ± 0.20 (paper 57.09 ± 0.04, outside)`."""
    if isinstance(cell, Pair):
        beside = ", ".join(filter(None, cell[1:]))
        return _on_one_line(f"{cell.ours} ({beside})" if beside else cell.ours)
    return _on_one_line(cell)


def _on_one_line(text: str) -> str:
    """Write a text so that it can stand in an entry of a table."""
    return " ".join(text.split()).replace("|", "\\|")
