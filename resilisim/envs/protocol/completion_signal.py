"""The completion signal: how an agent says that the task is complete, and which messages say so (SPEC section 4)."""

from __future__ import annotations

import re

from resilisim.chat import ToolCall
from resilisim.envs.protocol.native_messages import native_call

_FINISH_MARK = re.compile(
    r"<finish\s*/>|<finish>\s*</finish>"
    r"|\A[ \t>*#_`-]{0,20}action[ \t*_]{0,20}:[ \t*_`]{0,20}finish\b[ \t*_`]{0,20}(?=[({]|\Z)",
    re.IGNORECASE,
)
_ACTION_LABEL = re.compile(r"[ \t>*#_`-]{0,20}action[ \t*_]{0,20}:", re.IGNORECASE)
_FINISH_PHRASE = re.compile(
    r"finished executing|\btask( is| has been)? (complete|completed|done|finished)\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?;\n]|\b(?:but|however|although|though)\b", re.IGNORECASE)
_NEGATION = re.compile(r"\b(?:not|never|cannot|neither|nor|without|unable|hardly|yet to)\b|n['’]t\b", re.IGNORECASE)
# A sentence that says when the task will be complete, or that this will be told, says nothing about now.
_ANNOUNCEMENT = re.compile(
    r"\b(?:when(?:ever)?|once|if|until|unless|as soon as|whether|will|shall|going to|"
    r"to (?:check|confirm|ensure|make sure|see|verify))\b|['’]ll\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\b(?:when(?:ever)?|once|if|until|unless|as soon as|before|after)\b", re.IGNORECASE)
_NEW_CLAUSE = re.compile(r"[,:]\s*(?:and|so|now|therefore|thus|hence)\b|\bnow\b", re.IGNORECASE)
_CONDITION_BEHIND = re.compile(r"\W{0,3}(?:only\s)?(?:when|once|if|until|unless|as soon as|after)\b", re.IGNORECASE)


def signals_completion(text: str) -> bool:
    """Return whether a message without tags says that the task is complete, neither denied nor only announced."""
    for sentence in _SENTENCE_END.split(text):
        phrase = _FINISH_PHRASE.search(sentence)
        if phrase is not None and not _NEGATION.search(sentence) and not _is_announced(sentence, phrase):
            return True
    return has_finish_mark(text)


def has_finish_mark(text: str) -> bool:
    """Return whether a message says `<finish/>`, or `Action: finish` as its first action, and means it now."""
    follows_action = False
    for sentence in _SENTENCE_END.split(text):
        mark = _FINISH_MARK.search(sentence)
        label = _ACTION_LABEL.match(sentence)
        if label is not None and follows_action:
            continue
        follows_action = follows_action or label is not None
        if mark is not None and not _NEGATION.search(sentence, 0, mark.start()):
            conditions = _CONDITION.search(sentence, 0, mark.start()) or _CONDITION_BEHIND.match(sentence, mark.end())
            if conditions is None:
                return True
    return False


def _is_announced(sentence: str, phrase: re.Match[str]) -> bool:
    """Return whether words such as "when" or "will" stand before a phrase in its clause, or a condition behind it."""
    begin = 0
    for clause in _NEW_CLAUSE.finditer(sentence, 0, phrase.start()):
        begin = clause.end()
    since_comma = max(begin, sentence.rfind(",", 0, phrase.start()) + 1)  # "After all that, the task is complete"
    matches = (
        _ANNOUNCEMENT.search(sentence, begin, phrase.start()),
        _CONDITION.search(sentence, since_comma, phrase.start()),
        _CONDITION_BEHIND.match(sentence, phrase.end()),
    )
    return any(match is not None for match in matches)


def finish_message(native: bool, answer: str | None = None) -> str | ToolCall:
    """Return the message that signals completion, with an answer where one is asked for."""
    if native:
        return native_call("finish", {} if answer is None else {"answer": answer})
    return "<finish/>" if answer is None else f"<finish>{answer}</finish>"
