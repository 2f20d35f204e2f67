"""The directive `command-reference`: commands with their arguments and options, read from the commands themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from resilisim.cli.main import COMMANDS, load_command


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command that does something, with the words that call it."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else ()
    if not names:
        yield path, command
    for name in names:
        yield from commands(command.get_command(None, name), (*path, name))


def cell(text: str) -> str:
    """Return text as it may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def spelling(parameter: Any) -> str:
    """Return how an option is written."""
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def choices(option: Any) -> str:
    """Return the values that an option takes, unless its help names them."""
    annotation = option.type_descriptor.annotation
    literals = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Literal]
    names = [str(name) for kind in literals for name in get_args(kind)]
    if all(re.search(rf"\b{re.escape(name)}\b", option.help or "") for name in names):
        return ""
    return f" One of {', '.join(f'`{name}`' for name in names)}."


def default(option: Any) -> str:
    """Return what holds where an option is left out, if there is anything to say about that."""
    if isinstance(option.show_default, str):
        return f" (default: {cell(option.show_default)})"
    value = option.default
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        return ""
    return f" (default: `{value}`)"


def section(path: tuple[str, ...], command: Any, heading: bool) -> str:
    """Return what a command takes as Markdown; alone on its page it has no heading of its own."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    words = [*path, *(one.metavar or one.name.upper() for one in arguments), *(["[OPTIONS]"] if options else [])]
    title = f"`{' '.join(path)}`" if heading else "Arguments and options"
    lines = [f"## {title}", "", "```console", f"$ {' '.join(words)}", "```", "", command.help or "", ""]
    panels: dict[str, list[Any]] = defaultdict(list)
    for option in options:
        panels[getattr(option, "rich_help_panel", None) or "Options"].append(option)
    if arguments:
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| `{one.metavar or one.name.upper()}` | {cell(one.help or '')} |" for one in arguments] + [""]
    for panel, members in panels.items():
        lines += [f"| {panel.lower()} | |", "|---|---|"]
        for option in members:
            lines.append(f"| {spelling(option)} | {cell(option.help or '')}{choices(option)}{default(option)} |")
        lines.append("")
    return "\n".join(lines)


class CommandReference(SphinxDirective):
    """Puts a command with all of its options where it stands, of a group each; without a name the list of commands."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the sections, or the list."""
        if not self.arguments:
            rows = [f"| [`resilisim {name}`]({name}.md) | {summary} |" for name, (_, summary) in COMMANDS.items()]
            return self.parse_text_to_nodes("\n".join(["| command | |", "|---|---|", *rows]))
        name = self.arguments[0]
        shown = list(commands(load_command(name, *COMMANDS[name]), ("resilisim", name)))
        text = "\n".join(section(path, command, heading=len(shown) > 1) for path, command in shown)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
