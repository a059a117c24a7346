"""A document as Markdown, without its pictures."""

import re
from collections.abc import Iterable, Sequence

from raysafl.core.text import printable
from raysafl.report.pages.document import Block, Cell, Document, Grid, Picture, Strong
from raysafl.report.wording import as_markdown

# What begins a heading, a list or a quotation where a line begins.
OPENING = re.compile(r"^(\d*)(?=(?:[-+.)]|#+)\s|>)")
ESCAPED = r"\1\\"


def markdown(document: Document) -> str:
    """Write a document as Markdown; sections that have only pictures are left out."""
    parts = [f"# {as_markdown(document.title)}"]
    parts += [f"**{as_markdown(document.warning)}**"] if document.warning else []
    parts += [document.lead] if document.lead else []
    for title, own in document.sections.items():
        texts = [_block_text(block) for block in own if not isinstance(block, Picture)]
        parts += [f"## {title}", *texts] if texts else []
    return printable("\n\n".join(parts)) + "\n"


def _block_text(block: Block) -> str:
    if isinstance(block, Grid):
        return pipe_table(block.head, block.rows, block.heads)
    assert isinstance(block, str)
    return block.strip()


def bullets(lines: Iterable[str]) -> str:
    r"""Write a list of lines, each of which is shown as it is.

    Example:
        >>> print(bullets(["# of clients: 5", "lr: 0.1"]))
        - \# of clients: 5
        - lr: 0.1
    """
    return "\n".join(f"- {OPENING.sub(ESCAPED, as_markdown(line))}" for line in lines)


def pipe_table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], left: int = 1
) -> str:
    """Write a Markdown table, its first `left` columns flush left, the others flush right."""
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join(
        f"| {' | '.join(map(_cell_markdown, row))} |" for row in [head, rule, *rows]
    )


def _cell_markdown(cell: Cell) -> str:
    """Write an entry of a table, such as `**56.18 ± 0.20**`."""
    if isinstance(cell, Strong):
        return f"**{cell}**"
    return as_markdown(cell).replace("|", "\\|")
