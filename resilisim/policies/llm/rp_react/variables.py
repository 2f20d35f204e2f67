"""Long outputs, kept in variables that Python can read instead of in the conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from resilisim.chat.types import BYTES_PER_TOKEN, estimated_tokens
from resilisim.policies.llm.sandbox import CodeResult, JsonValue, Sandbox

PREFIX: Final = "output_"


@dataclass(frozen=True, slots=True)
class Variable:
    """A stored output.

    Attributes:
        name: The variable.
        tool: The tool whose output it is.
        tokens: Its length, estimated.
        kind: Its type in Python.
        preview: Its beginning.
    """

    name: str
    tool: str
    tokens: int
    kind: str
    preview: str

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"name": self.name, "tool": self.tool, "tokens": self.tokens, "kind": self.kind, "preview": self.preview}


class Variables:
    """The variables of one task. The sandbox is given them when code is run for the first time.

    Args:
        box: The sandbox that code is run in.
    """

    def __init__(self, box: Sandbox) -> None:
        self.stored: list[Variable] = []
        self._box = box
        self._waiting: dict[str, JsonValue] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all variables."""
        return tuple(variable.name for variable in self.stored)

    def store(self, tool: str, value: JsonValue, text: str, preview: int) -> Variable:
        """Store an output under a new name.

        Args:
            tool: Whose output it is.
            value: What Python gets.
            text: What the executor would have been shown.
            preview: Tokens of the preview.
        """
        variable = Variable(
            name=f"{PREFIX}{len(self.stored) + 1}",
            tool=tool,
            tokens=estimated_tokens(text),
            kind=type(value).__name__,
            preview=first_tokens(text, preview),
        )
        self.stored.append(variable)
        self._waiting[variable.name] = value
        return variable

    async def run(self, code: str) -> CodeResult:
        """Run code that can read the variables."""
        for name in tuple(self._waiting):
            put = await self._box.assign(name, self._waiting.pop(name))
            if put.error is not None:
                return CodeResult("", f"{name} does not fit into the sandbox: {put.error}", put.restarted, 0, put.kept)
        return await self._box.run(code)


def first_tokens(text: str, tokens: int) -> str:
    """Return the beginning of a text that has about so many tokens."""
    return text.encode("utf-8", "replace")[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")
