"""The directives `record-keys`, a table of the keys of a record, and `labels`, a table of what labels mean.

    ```{record-keys} resilisim.evaluation.episode.record:ScoreRecord
    level: What it means.
    ```

The types are read from the record's class. A key that the class has and the page lacks, or the other way round, is an
error: the page cannot drift from the software.
"""

from __future__ import annotations

import importlib
import types
import typing
from typing import Any, NotRequired, Required

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typing_extensions import get_type_hints, is_typeddict

WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", types.NoneType: "null", Any: "any"}


def found(target: str) -> Any:
    """Return what `module:name` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def type_in_words(hint: Any) -> str:
    """Return what a type is in JSON, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (NotRequired, Required, typing.Annotated):
        return type_in_words(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_in_words(argument) for argument in arguments)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is list:
        inner = type_in_words(arguments[0])
        return "list of lists" if inner.startswith("list") else f"list ({inner})"
    if origin is dict or is_typeddict(hint):
        return "object"
    return WORDS[hint]


def keys_of(record: Any) -> dict[str, tuple[str, bool]]:
    """Return the keys of a record: its type in words, and whether it may be left out."""
    hints = get_type_hints(record, include_extras=True)
    return {name: (type_in_words(hint), typing.get_origin(hint) is NotRequired) for name, hint in hints.items()}


class RecordKeys(SphinxDirective):
    """Puts a table of the keys of a record where it stands, with the meanings that its content gives."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        meanings = dict(line.split(": ", maxsplit=1) for line in self.content if line)
        keys = keys_of(found(self.arguments[0]))
        if meanings.keys() != keys.keys():
            differing = ", ".join(sorted(meanings.keys() ^ keys.keys()))
            raise self.error(f"the page and {self.arguments[0]} differ in the keys {differing}")
        rows = ["| key | type | meaning |", "|---|---|---|"]
        for name, meaning in meanings.items():
            kind, optional = keys[name]
            rows.append(f"| `{name}` | {kind}{', *optional*' if optional else ''} | {meaning} |")
        return self.parse_text_to_nodes("\n".join(rows))


class Labels(SphinxDirective):
    """Puts a table of a mapping from labels to their meanings where it stands."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows = [
            f"| {name.replace('_', ' ')} | `{name}` | {meaning} |" for name, meaning in found(self.arguments[0]).items()
        ]
        return self.parse_text_to_nodes("\n".join(["| label | in records | meaning |", "|---|---|---|", *rows]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("record-keys", RecordKeys)
    app.add_directive("labels", Labels)
    return {"parallel_read_safe": True}
