"""How an answer is scored without a model: the definitions that the public benchmarks use, in code of our own.

- SQuAD (Rajpurkar and others, 2016): normalisation, exact match, F1 over tokens.
- HotpotQA (Yang and others, 2018): the same, and "yes", "no" and "noanswer" share tokens with nothing but themselves.
- QAMPARI (Amouyal and others, 2022): precision, recall and F1 over the answers of a list.
- LOFT (Lee and others, 2024): exact match, containment and F1 of one answer; exact match, coverage and containment by
  the best assignment of a list; normalisation also takes accents apart from their letters.

Where several answers are right in other words, the best of the comparisons counts, as in all of them.
"""

from __future__ import annotations

import json
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from resilisim.errors import check_number

Definition = Literal["squad", "hotpotqa"]
# What may be said for one answer: the answer, or the same in several words.
RightAnswer: TypeAlias = str | Sequence[str]

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ALL_OR_NOTHING: Final = ("yes", "no", "noanswer")
_NUMBER: Final = re.compile(r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.?)(?:[eE][-+]?\d+)?")
_BULLET: Final = re.compile(r"^\s*(?:[-*\u2022]|\(?\d{1,3}[.):])\s+")


def normalized(text: str, *, decomposed: bool = False) -> str:
    """Return a text in lower case, without ASCII punctuation, articles and extra space, as SQuAD compares it.

    Args:
        text: An answer.
        decomposed: Whether accents are taken apart from their letters first (NFD), as LOFT does.
    """
    text = unicodedata.normalize("NFD", text) if decomposed else text
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(answer: str, right: RightAnswer) -> bool:
    """Return whether an answer is one of the right ones, all normalised (SQuAD, HotpotQA)."""
    said = normalized(answer)
    return any(said == normalized(wording) for wording in _several(right))


@dataclass(frozen=True, slots=True)
class Overlap:
    """How far an answer and a right one agree: shares of what is in both, and their harmonic mean, in [0, 1]."""

    f1: float
    precision: float
    recall: float

    @classmethod
    def of(cls, *, common: int, given: int, right: int) -> Overlap:
        """Return the scores of `common` things among so many `given` and so many `right` ones; nothing common is 0."""
        if common == 0:
            return cls(0.0, 0.0, 0.0)
        precision, recall = common / given, common / right
        return cls(2 * precision * recall / (precision + recall), precision, recall)


def token_overlap(answer: str, right: RightAnswer, definition: Definition = "hotpotqa") -> Overlap:
    """Return the overlap of the tokens of an answer with those of the right one; of several right ones, the best.

    Args:
        answer: What was answered.
        right: The right answer, or the same in several words.
        definition: "hotpotqa", where "yes", "no" and "noanswer" agree with nothing but themselves; or "squad", where
            they are tokens as others are, and answers without a token agree with each other (version 2.0).
    """
    return max((_token_overlap(answer, wording, definition) for wording in _several(right)), key=lambda found: found.f1)


def _token_overlap(answer: str, right: str, definition: Definition) -> Overlap:
    given_text, right_text = normalized(answer), normalized(right)
    if definition == "hotpotqa" and given_text != right_text and {given_text, right_text} & set(_ALL_OR_NOTHING):
        return Overlap(0.0, 0.0, 0.0)
    said, wanted = given_text.split(), right_text.split()
    if definition == "squad" and not (said and wanted):
        return Overlap(*[float(said == wanted)] * 3)
    return _shared_tokens(said, wanted)


def _shared_tokens(said: Sequence[str], wanted: Sequence[str]) -> Overlap:
    return Overlap.of(common=(Counter(said) & Counter(wanted)).total(), given=len(said), right=len(wanted))


def list_overlap(answers: Sequence[str], right: Sequence[RightAnswer]) -> Overlap:
    """Return the overlap of a list of answers with the right ones, each of which counts once (QAMPARI).

    The same text twice counts once; other texts for a right answer that was given already count as wrong. So where F1
    is 1, the list is complete and holds nothing else.
    """
    answer_set = set(answers)
    said = {normalized(answer) for answer in answer_set}
    num_found = sum(not said.isdisjoint(map(normalized, _several(wordings))) for wordings in right)
    return Overlap.of(common=num_found, given=len(answer_set), right=len(right))


@dataclass(frozen=True, slots=True)
class LoftScores:
    """LOFT's scores of one question; `subspan_em` is the one that its tables show.

    Attributes:
        em: Exact match; of a list, of the sets.
        subspan_em: Whether the answer contains a right one; of a list, whether answers and right ones can be paired
            so that in each pair one contains the other and no right one is left over.
        f1: Best F1 over tokens; of a list, the share of right answers that were given (LOFT's coverage).
    """

    em: float
    subspan_em: float
    f1: float


def loft_scores(answer: str | Sequence[str], right: Sequence[str]) -> LoftScores:
    """Return LOFT's scores: of one text against several wordings, or of a list against all that belongs to it.

    Args:
        answer: A text is scored as LOFT's `rag`, a list as its `multi_value_rag`; no answer scores 0.
        right: Wordings of the one right answer; for a list, all right answers.
    """
    wanted = [normalized(item, decomposed=True) for item in right]
    if isinstance(answer, str):
        text = normalized(answer, decomposed=True)
        f1 = max(_shared_tokens(text.split(), item.split()).f1 for item in wanted)
        return LoftScores(float(text in wanted), float(any(item in text for item in wanted)), f1)
    texts = [normalized(item, decomposed=True) for item in answer]
    if not texts:
        return LoftScores(0.0, 0.0, 0.0)
    shared = set(texts) & set(wanted)
    return LoftScores(float(set(texts) == set(wanted)), float(_can_be_paired(wanted, texts)), len(shared) / len(wanted))


def _can_be_paired(wanted: Sequence[str], said: Sequence[str]) -> bool:
    """Return whether each wanted text has a given one of its own that contains it or is contained in it."""
    partner: dict[int, int] = {}  # of each given text: the wanted one

    def finds(place: int, tried: set[int]) -> bool:
        for other, text in enumerate(said):
            if other not in tried and (wanted[place] in text or text in wanted[place]):
                tried.add(other)
                if other not in partner or finds(partner[other], tried):
                    partner[other] = place
                    return True
        return False

    return all(finds(place, set()) for place in range(len(wanted)))


def number_in(text: str) -> float | None:
    """Return the number that a text names, or None if it names none or several that differ.

    Commas between thousands, signs, powers of ten, units and currencies around it are read; words for numbers are not.
    """
    numbers = {float(match.group().replace(",", "").replace("\u2212", "-")) for match in _NUMBER.finditer(text)}
    return numbers.pop() if len(numbers) == 1 else None


def number_match(answer: str, right: float, *, relative: float = 1e-6, absolute: float = 0.0) -> bool:
    """Return whether an answer names the right number, within the larger of both tolerances.

    Args:
        answer: What was answered.
        right: The right number.
        relative: Tolerance as a share of the right number, at least 0.
        absolute: Tolerance as a difference, at least 0.

    Raises:
        InvalidInputError: A tolerance is below 0.
    """
    number = number_in(answer)
    tolerance = max(
        check_number("relative tolerance", relative, least=0) * abs(right),
        check_number("absolute tolerance", absolute, least=0),
    )
    return number is not None and math.isfinite(number) and abs(number - right) <= tolerance


def answers_in(text: str) -> tuple[str, ...]:
    """Return the answers that a text lists: a JSON array, else lines, else parts between semicolons, else commas.

    Bullets and numbers before lines go, and an "and" before the last part between commas.
    """
    text = text.strip()
    if text.startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list):
            texts = (item.strip() if isinstance(item, str) else json.dumps(item) for item in listed)
            return tuple(item for item in texts if item)
    if "\n" in text:
        parts = [_BULLET.sub("", line) for line in text.splitlines()]
    elif ";" in text:
        parts = text.split(";")
    else:
        parts = re.split(r",\s*(?:and\s+)?|\s+and\s+", text)
    return tuple(stripped for part in parts if (stripped := part.strip(" \t;")))


def turn_scores(answers: Sequence[str], right: Sequence[RightAnswer]) -> tuple[Overlap, ...]:
    """Return the token overlap of each turn of a conversation; a turn that was not answered has 0.

    An exact match is an overlap of 1 in everything (but for the order of words); answers beyond the last turn are
    not looked at.
    """
    padded = [*answers[: len(right)], *[""] * (len(right) - len(answers))]
    return tuple(token_overlap(answer, right_answer) for answer, right_answer in zip(padded, right, strict=True))


def _several(right: RightAnswer) -> Sequence[str]:
    return (right,) if isinstance(right, str) else right
