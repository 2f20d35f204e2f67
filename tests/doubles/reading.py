"""How surely a rule-based model reads: a share of what it reads is wrong, and how sure it says it is tells in part.

The confidences are made up: of what is right 1 - u^3 / 2, of what is wrong 0.45 + u^2 / 2, with u uniform. So a low
threshold lets wrong values through, and a high one turns right ones away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from resilisim.seeding import Draws

SURE, LOST = 0.95, 0.2  # confidences of a reader who makes no mistake: where there is something, and where not
_TITLE = re.compile(r'"title": "([^"]+)"')
_SENTENCE = re.compile(r"(?<=[.?!] )[A-Z][^.?!\\\"]{20,200}\.")


class Readable(Protocol):
    """Something that is looked for in a text."""

    def read(self, text: str) -> Any:
        """Return it as the text has it; None if it is not there."""
        ...


@dataclass(frozen=True)
class Reader:
    """Reads what it is asked for, of one question.

    Attributes:
        share: How much of what it reads is right.
        question: The question; the same one is read the same way.
        attempt: Another attempt reads anew.
    """

    share: float = 1.0
    question: str = ""
    attempt: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether it makes no mistake."""
        return self.share >= 1.0

    def read(self, name: str, wanted: Readable, shown: str) -> tuple[Any, float]:
        """Return what it takes for the wanted value, None if that is not there, and how sure it says it is."""
        value = wanted.read(shown)
        if value is None:
            return None, LOST
        if self.is_exact or not isinstance(value, str):
            return value, SURE
        draws = Draws("tests/reading", self.question, name, self.attempt)
        is_right, place = draws.uniform() < self.share, draws.uniform()
        if is_right:
            return value, round(1.0 - place**3 / 2.0, 2)
        others = _TITLE.findall(shown) if value in _TITLE.findall(shown) else _SENTENCE.findall(shown)
        others = [other for other in others if other != value]
        return (draws.choice(others) if others else "something else"), round(0.45 + place**2 / 2.0, 2)
