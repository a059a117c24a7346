"""Tables in HTML, for notebooks."""

from collections.abc import Sequence
from html import escape


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Write a table, its first `left` columns flush left, the others flush right."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        styles = ["left" if i < left else "right" for i in range(len(texts))]
        return "".join(
            f'<{tag} style="text-align: {style}">{escape(text).replace(chr(10), "<br>")}</{tag}>'
            for style, text in zip(styles, texts, strict=True)
        )

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f"<table><thead><tr>{cells('th', head)}</tr></thead>\n"
        f"<tbody>{body}</tbody></table>"
    )
