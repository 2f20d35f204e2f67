"""What the values of the columns of played episodes mean, for the dataset card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from resilisim.evaluation.episode.record import LOSS_LABELS

_KINDS: Final[Mapping[str, str]] = {
    "search": "it searched for tools",
    "info": "it asked about a tool",
    "execute": "it ran a tool",
    "rejected": "a call of an unknown tool, or with parameters that were refused; nothing ran",
    "finish": "it signalled completion",
    "format_error": "no tag and no call could be read; also an honest last message that not everything was done",
    "stop": "the policy stopped without a message",
}
_LEVELS: Final[Mapping[str, str]] = {
    "full_success": "every required tool succeeded, in the required order, and completion was signalled",
    "partial_success": "enough of the required tools succeeded, among them an output tool, or two in their order",
    "failure": "less than that, or an end by consecutive_failures or loop",
}
_ENDS: Final[Mapping[str, str]] = {
    "completion": "completion was signalled",
    "turns": "the turns were used up, and the last message did not signal completion",
    "consecutive_failures": "too many executions in a row failed",
    "loop": "the same unproductive message came too many times in a row",
    "stopped": "the policy stopped by itself",
}
# Finding out what the prompt does not say has a price, and a message that obeys its prompt is not held against anybody.
_NO_MISTAKES: Final = ("information", "obeyed_flaw")
VALUES: Final[Mapping[str, Sequence[tuple[str, Mapping[str, str]]]]] = {
    "conversations": (
        ("turns.kind", _KINDS),
        ("turns.label", LOSS_LABELS),
        ("ended_by", _ENDS),
        ("level", _LEVELS),
    ),
    "preferences": (
        ("rejected_kind", {kind: text for kind, text in _KINDS.items() if kind not in ("info", "stop")}),
        ("rejected_reason", {label: text for label, text in LOSS_LABELS.items() if label not in _NO_MISTAKES}),
    ),
}


def values_table(kind: str) -> str:
    """Return the values of a kind's columns as a Markdown table; empty for kinds without such columns."""
    if kind not in VALUES:
        return ""
    rows = [f"| `{column}` | {name} | {text} |" for column, texts in VALUES[kind] for name, text in texts.items()]
    return "\n".join(["| column | value | meaning |", "|---|---|---|", *rows])
