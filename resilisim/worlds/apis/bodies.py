"""Bodies of answers, generated from a template of the same shape: what the twin sends in place of a real host.

A template is the JSON of a body in which texts hold placeholders: `<word>`, `<name>`, `<sentence>`, `<date>`,
`<clock>`, `<digits 4>`, `<hex 16>`, `<integer 1 9>`, `<number -5 5 2>` (two decimals), `<one red green>`,
`<given city>` (what the request gave). A placeholder that is a whole text gives a value of its own type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.seeding import Draws

_PLACE = re.compile(r"<([a-z]+)((?: [^<> ]+)*)>")
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "st", "tr", "gl")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "l", "n", "r", "s")
_PLAIN = (
    *("after", "all", "before", "every", "few", "its", "many", "most", "never", "no", "old", "one", "only", "some"),
    *("than", "that", "their", "three", "under", "with", "without", "young", "finds", "keeps", "makes", "takes"),
)


def _word(draws: Draws, syllables: int) -> str:
    """Return a word that no text holds by chance: 450 syllables for each place."""
    parts = (draws.choice(_ONSETS) + draws.choice(_VOWELS) + draws.choice(_CODAS) for _ in range(syllables))
    return "".join(parts)


def _sentence(draws: Draws) -> str:
    words = [draws.choice(_PLAIN) for _ in range(draws.between(3, 6))]
    for _ in range(3):
        words.insert(draws.below(len(words) + 1), _word(draws, 3))
    return f"{' '.join(words)}.".capitalize()


def _digits(draws: Draws, count: int, base: int = 10) -> str:
    return "".join("0123456789abcdef"[draws.between(1 if place == 0 else 0, base - 1)] for place in range(count))


# Kind -> (number of arguments, None for at least one, and what makes the value).
_KINDS: Mapping[str, tuple[int | None, Callable[[Draws, Sequence[str]], Any]]] = {
    "word": (0, lambda draws, _: _word(draws, 3)),
    "name": (0, lambda draws, _: _word(draws, 3).capitalize()),
    "sentence": (0, lambda draws, _: _sentence(draws)),
    "date": (0, lambda draws, _: f"2026-{draws.between(1, 12):02d}-{draws.between(1, 28):02d}"),
    "clock": (0, lambda draws, _: f"{draws.below(24):02d}:{draws.below(60):02d}"),
    "digits": (1, lambda draws, given: _digits(draws, int(given[0]))),
    "hex": (1, lambda draws, given: _digits(draws, int(given[0]), 16)),
    "integer": (2, lambda draws, given: draws.between(int(given[0]), int(given[1]))),
    "number": (
        3,
        lambda draws, given: round(
            float(given[0]) + draws.uniform() * (float(given[1]) - float(given[0])), int(given[2])
        ),
    ),
    "one": (None, lambda draws, given: draws.choice(given)),
}


def generated(template: Any, draws: Draws, given: Mapping[str, Any]) -> Any:
    """Return a body of a template's shape; `given` are the parameters of the request."""
    if isinstance(template, Mapping):
        return {str(generated(name, draws, given)): generated(item, draws, given) for name, item in template.items()}
    if isinstance(template, list):
        return [generated(item, draws, given) for item in template]
    if not isinstance(template, str):
        return template
    if whole := _PLACE.fullmatch(template):
        return _value(whole, draws, given)
    return _PLACE.sub(lambda found: str(_value(found, draws, given)), template)


def _value(found: re.Match[str], draws: Draws, given: Mapping[str, Any]) -> Any:
    kind, arguments = found[1], found[2].split()
    return given.get(arguments[0], "") if kind == "given" else _KINDS[kind][1](draws, arguments)


def check_template(template: Any, parameters: Sequence[str]) -> None:
    """Refuse a template with placeholders that mean nothing."""
    if isinstance(template, Mapping):
        for name, item in template.items():
            check_template(name, parameters)
            check_template(item, parameters)
    elif isinstance(template, (list, tuple)):
        for item in template:
            check_template(item, parameters)
    elif isinstance(template, str):
        for found in _PLACE.finditer(template):
            _check_place(found, parameters)


def _check_place(found: re.Match[str], parameters: Sequence[str]) -> None:
    kind, arguments = found[1], found[2].split()
    if kind == "given":
        if len(arguments) != 1 or arguments[0] not in parameters:
            raise unknown_name(
                "parameter", " ".join(arguments), parameters, f"placeholder {found[0]!r:.80} of the answer"
            )
        return
    if kind not in _KINDS:
        raise unknown_name("kind", kind, [*_KINDS, "given"], f"placeholder {found[0]!r:.80} of the answer")
    count, make = _KINDS[kind]
    try:
        if len(arguments) != count and not (count is None and arguments):
            raise ValueError
        make(Draws(), arguments)
    except (ValueError, OverflowError):
        expected = "at least one argument" if count is None else f"{count} arguments, numbers that it can use"
        raise InvalidInputError(f"placeholder {found[0]!r:.80} of the answer: expected {expected}") from None
