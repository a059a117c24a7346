"""What the site changes in docstrings: griffe reads this file while the site is built."""

from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Bring docstrings to the headings that griffe knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Show what follows `Example:` as code, and `Args:` of a NamedTuple as its fields."""
        if obj.docstring is None:
            return
        text = obj.docstring.value.replace("Example:\n", "Examples:\n")
        if obj.is_class and "NamedTuple" in map(str, obj.bases):
            text = text.replace("Args:\n", "Attributes:\n")
        obj.docstring.value = text
