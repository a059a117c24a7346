"""What the site changes in docstrings: griffe reads this file while the site is built."""

import sys
from typing import Any

import griffe

from raysafl import Run, algorithms, data, models, objectives, participation, training

# griffe reads files and imports none. These bring every component.
IMPORTED = (Run, algorithms, data, models, objectives, participation, training)


class Docstrings(griffe.Extension):
    """Bring docstrings to the headings that griffe knows, and describe every field."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Show what follows `Example:` as code, and `Args:` of a NamedTuple as its fields."""
        if obj.docstring is None:
            return
        text = obj.docstring.value.replace("Example:\n", "Examples:\n")
        if obj.is_class and "NamedTuple" in map(str, obj.bases):
            text = text.replace("Args:\n", "Attributes:\n")
        obj.docstring.value = text

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Describe fields whose description stands in a type that several fields share."""
        component = getattr(sys.modules.get(cls.module.path), cls.name, None)
        for name, field in getattr(component, "model_fields", {}).items():
            member = cls.members.get(name)
            if member is not None and member.docstring is None and field.description:
                member.docstring = griffe.Docstring(field.description, parent=member)
