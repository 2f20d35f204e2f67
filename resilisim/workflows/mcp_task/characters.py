r"""Any text as one line that XML 1.0 can hold, and back exactly.

XML refuses control characters, halves of surrogate pairs, U+FFFE and U+FFFF, and changes line ends. These, and
everything else that could end a line, are written as `\uXXXX`. So that a text that itself holds `\u0041` stays what it
is, backslashes that stand directly before such a code are doubled; all other backslashes are left alone.
"""

from __future__ import annotations

import re

_UNFIT = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]"
_CODE = r"u[0-9a-fA-F]{4}"
# Only whole runs of backslashes are looked at, each from its beginning, so the time is linear in the text.
_TO_ENCODE = re.compile(rf"(?<!\\)(?:(\\*+)({_UNFIT})|(\\++)(?={_CODE}))")
_TO_DECODE = re.compile(rf"(?<!\\)(\\++)({_CODE})")


def encode_characters(text: str) -> str:
    """Return a text as one line of characters that XML can hold; markup is left to the XML writer."""
    if text.isprintable() and "\\u" not in text:
        return text
    return _TO_ENCODE.sub(_encoded, text)


def decode_characters(text: str) -> str:
    """Return the text that `encode_characters` was given."""
    return _TO_DECODE.sub(_decoded, text) if "\\u" in text else text


def _encoded(match: re.Match[str]) -> str:
    backslashes, unfit, backslashes_before_code = match.groups()
    if unfit is None:
        return str(backslashes_before_code * 2)
    return f"{backslashes * 2}\\u{ord(unfit):04x}"


def _decoded(match: re.Match[str]) -> str:
    backslashes, code = match.groups()
    half, odd = divmod(len(backslashes), 2)
    return "\\" * half + (chr(int(code[1:], 16)) if odd else code)
