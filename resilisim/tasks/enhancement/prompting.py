"""The texts that models are asked with: packaged Markdown files with `${placeholders}`."""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from importlib import resources

from resilisim.chat import ChatMessage
from resilisim.provenance import content_hash

LONGEST_REPEATED_ANSWER = 4000  # characters of a refused answer that the model is shown again


@functools.cache
def template(name: str) -> str:
    """Return a packaged template."""
    folder = resources.files("resilisim.tasks.enhancement").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")


def filled(name: str, values: Mapping[str, object]) -> str:
    """Return a template with its placeholders replaced; what stands in the values is not looked at again."""
    return string.Template(template(name)).substitute(values).strip()


def question(mode: str, rules: Mapping[str, object], facts: Mapping[str, object]) -> tuple[ChatMessage, ...]:
    """Return the first messages of a conversation: the rules of a mode, then the facts of one task."""
    return (
        ChatMessage("system", filled(f"{mode}.system.md", rules)),
        ChatMessage("user", filled(f"{mode}.user.md", facts)),
    )


def correction(answer: str, reason: str) -> tuple[ChatMessage, ...]:
    """Return the messages that follow an answer that cannot be used: the answer, and why not."""
    shown = answer.strip()[:LONGEST_REPEATED_ANSWER] or "(no answer)"
    return (ChatMessage("assistant", shown), ChatMessage("user", filled("again.md", {"reason": reason})))


def templates_hash(mode: str) -> str:
    """Return the hash of the texts of a mode: other texts are other questions."""
    return content_hash([template(name) for name in (f"{mode}.system.md", f"{mode}.user.md", "again.md")])
