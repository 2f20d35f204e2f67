"""What leaves the process: secrets are taken out of whatever is written or shown, and nothing steers a terminal.

Two strengths. `without_secrets` takes out what is a secret beyond doubt: those that are known (`keep_secret`, and the
environment's variables that are named like keys), what has the form of a common service's key, and credentials in URLs.
Records, manifests and datasets go through it, where a word too many would change what an agent said. `without_named`
also takes out what only its name makes a secret (`--api-key abc`, `token=abc`); words for people go through it.

Where secrets come in, they are told once (`keep_secret`, `without_credentials`, `without_secret_arguments`); where
anything goes out, it passes here: lines, manifests and pages in `run_folder`, terminals in `cli.output`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

SECRET_MARK: Final = "[secret]"  # stands where a secret stood
# Shorter ones are the "EMPTY" and "test" that local servers are given: no secrets, and words that anybody may use.
SHORTEST_SECRET: Final = 12  # below it only a whole word counts
SHORTEST_KNOWN: Final = 4  # of what somebody has put where a secret belongs
SHORTEST_IN_ENVIRONMENT: Final = 8
_PLACEHOLDERS: Final = frozenset(
    {"none", "null", "empty", "test", "dummy", "local", "true", "false", "key", "token", "secret", "password", "basic"}
    | {
        "bearer",
        "not-needed",
        "no-key-required",
        "changeme",
        "placeholder",
        "anything",
        "ollama",
        "lm-studio",
        "unused",
    }
)

# The last word of a name that holds a secret: apiKey, OPENAI_API_KEY, --auth-token; not max_tokens, not key_file.
_SECRET_WORDS: Final = frozenset(
    {"key", "apikey", "accesskey", "secretkey", "privatekey", "token", "apitoken", "accesstoken", "authtoken", "secret"}
    | {"password", "passwd", "passphrase", "pass", "pwd", "credential", "credentials", "auth", "authorization"}
    | {"bearer", "cookie", "jwt", "pat"}
)
# In an environment these name other things, too: the working directory, say.
_NOT_IN_ENVIRONMENT: Final = frozenset({"pwd", "auth", "pass", "cookie"})
_NAME_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# How keys of common services begin, and what they look like whole.
_FORMS: Final[Mapping[str, str]] = {
    "sk-": r"sk-[\w-]{12,}",
    **{f"{kind}k_{use}_": r"[sr]k_(?:live|test)_\w{12,}" for kind in "sr" for use in ("live", "test")},
    "pk-": r"pk-lf-[\w-]{12,}",
    "gsk_": r"gsk_\w{16,}",
    "xai-": r"xai-\w{16,}",
    "hf_": r"hf_[A-Za-z0-9]{16,}",
    "r8_": r"r8_[A-Za-z0-9]{16,}",
    **{f"gh{letter}_": r"gh[pousr]_[A-Za-z0-9]{16,}" for letter in "pousr"},
    "github_pat_": r"github_pat_\w{16,}",
    "glpat-": r"glpat-[\w-]{16,}",
    "xox": r"xox[abeoprs]-[\w-]{10,}",
    "AKIA": r"AKIA[A-Z0-9]{16}",
    "ASIA": r"ASIA[A-Z0-9]{16}",
    "AIza": r"AIza[\w-]{30,}",
    "npm_": r"npm_[A-Za-z0-9]{30,}",
    "pypi-": r"pypi-[\w-]{30,}",
    "tvly-": r"tvly-[\w-]{16,}",
    "SG.": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "eyJ": r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{5,}",
}
_BEGINNINGS: Final = (*_FORMS, "PRIVATE KEY", "earer", "EARER", "uthorization", "UTHORIZATION")
_FORM: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:" + "|".join(dict.fromkeys(_FORMS.values())) + r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"  # and no more than may stand within a string of JSON
    r"(?:(?!-----END)(?:[A-Za-z0-9+/=\s:.-]|\\[nrt])){0,20000}(?:-----END [A-Z ]*PRIVATE KEY-----)?"
)
_HEADER: Final = re.compile(
    r"(?i)\b(authorization[\\\"']*\s*[:=]\s*[\\\"']*(?:(?:bearer|basic|token|digest)\s+)?)([^\s\"',;\\]{4,})"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)((?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}|[\w.~+/=-]{24,})")
_URL_USER: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)([^\s/?#\"'<>\\@]{1,400})@")

_VALUE: Final = re.escape(SECRET_MARK) + r"|\"[^\"\n]{1,4000}\"|'[^'\n]{1,4000}'|[^\s&\"',;)\]}>{<$\\]{1,4000}"
_NAMED: Final = re.compile(
    rf"(?P<name>(?<![\w-])--?[A-Za-z][\w-]{{0,80}})(?P<link>\s+|=)(?P<option>{_VALUE})"
    rf"|(?P<name2>(?<![\w-])[A-Za-z][\w-]{{0,80}})(?P<link2>=)(?P<value>{_VALUE})"
    r"|(?P<name3>[\"'][A-Za-z][\w-]{0,80}[\"'])(?P<link3>\s*:\s*)(?P<quoted>\"[^\"\n]{1,4000}\"|'[^'\n]{1,4000}')"
)
# An argument of a program that nobody can read aloud: letters and digits in one long row, or a UUID.
_OPAQUE: Final = re.compile(
    r"(?=[A-Za-z0-9]*\d)(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{24,}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)
_HEADER_OPTIONS: Final = frozenset({"-H", "--header", "--headers"})
_USER_OPTIONS: Final = frozenset({"-u", "--user"})

# A backslash, or several of them, which JSON may spell as escapes in their turn.
_BACKSLASHES: Final = r"\\(?:\\|u005[cC])*"

_ESCAPES: Final = re.compile(r"\\(?:u00|x)", re.IGNORECASE)

# What a terminal would obey, or what turns the order of the letters around: all but tabs and line ends.
STEERING: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f"
)
_STEERING: Final = re.compile(f"[{STEERING}]")

_known: set[str] = set()


def keep_secret(*values: str) -> None:
    """Say of values that they are secret: from now on they are taken out of whatever this process writes or shows.

    Empty texts, very short ones and placeholders ("none", "test") are no secrets, and are left.
    """
    for value in values:
        if len(value.strip()) >= SHORTEST_KNOWN and value.strip().lower() not in _PLACEHOLDERS:
            _known.add(value.strip())


def is_secret_name(name: str) -> bool:
    """Tell whether what has this name is a secret, as far as a name can say (`apiKey`, `OPENAI_API_KEY`, `--token`)."""
    words = _NAME_WORDS.findall(name)
    return bool(words) and words[-1].lower() in _SECRET_WORDS


def without_secrets(text: str) -> str:
    """Return a text without what is a secret beyond doubt; a text that holds none is returned as it is."""
    text = without_known(text, _secrets())
    if any(beginning in text for beginning in _BEGINNINGS):
        text = _FORM.sub(SECRET_MARK, text)
        text = _BEARER.sub(rf"\1{SECRET_MARK}", _HEADER.sub(rf"\1{SECRET_MARK}", text))
    if "://" in text and "@" in text:
        text = _URL_USER.sub(rf"\1{SECRET_MARK}@", text)
    return text


def without_named(text: str) -> str:
    """Return words for people without secrets, those included that only their name gives away."""
    return _NAMED.sub(_named_away, without_secrets(text))


def _named_away(match: re.Match[str]) -> str:
    name = match["name"] or match["name2"] or match["name3"]
    link = match["link"] or match["link2"] or match["link3"]
    value = match["option"] or match["value"] or match["quoted"]
    if not is_secret_name(name) or (link.isspace() and value.startswith("-")) or value.strip("\"'") == SECRET_MARK:
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{link}{quote}{SECRET_MARK}{quote}"


def without_secrets_in(value: T) -> T:
    """Return a JSON value without secrets in its texts and names; the same object if it has none."""
    try:
        # One look at the whole is much cheaper than one at each text, and nearly always enough.
        if not may_hold_secrets(json.dumps(value, ensure_ascii=False)):
            return value
    except (TypeError, ValueError, RecursionError):
        pass  # not all of it is JSON
    try:
        return cast("T", _walked(value))
    except RecursionError:
        return value  # in a circle, or too deep: nobody can write it, and its writer says so


def _walked(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        pairs = [(_walked(name) if isinstance(name, str) else name, _walked(item)) for name, item in value.items()]
        changed = any(
            new[0] is not old[0] or new[1] is not old[1] for new, old in zip(pairs, value.items(), strict=True)
        )
        return dict(pairs) if changed else value
    if isinstance(value, list | tuple):
        items = [_walked(item) for item in value]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return items if changed else value
    return value


def may_hold_secrets(text: str) -> bool:
    """Tell whether a text, which may be JSON, holds a secret; of most texts it says quickly that they do not."""
    return without_secrets(text) != text


def without_credentials(url: str) -> str:
    """Return a URL without user, password and secrets of its query, which are kept secret from now on."""
    for match in _URL_USER.finditer(url):
        user, colon, password = match[2].partition(":")
        keep_secret(*((password, _unquoted(password)) if colon else (user, _unquoted(user))))
    for match in _NAMED.finditer(url):
        if match["value"] and is_secret_name(match["name2"]):
            keep_secret(match["value"], _unquoted(match["value"]))
    return without_named(url)


def _unquoted(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)


def without_secret_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a program without those that are secrets, which are kept secret from now on."""
    shown = []
    for place, argument in enumerate(arguments):
        before = arguments[place - 1] if place else ""
        name, equals, value = argument.partition("=")
        if before in _HEADER_OPTIONS or (equals and name in _HEADER_OPTIONS):
            head, colon, words = argument.partition(":")
            keep_secret(words, words.strip().rpartition(" ")[2])
            shown.append(f"{head}: {SECRET_MARK}" if colon else SECRET_MARK)
        elif before in _USER_OPTIONS and ":" in argument:
            user, _, password = argument.partition(":")
            keep_secret(password)
            shown.append(f"{user}:{SECRET_MARK}")
        elif before.startswith("-") and "=" not in before and is_secret_name(before) and not argument.startswith("-"):
            keep_secret(argument)
            shown.append(SECRET_MARK)
        elif equals and value and is_secret_name(name) and "://" not in name:
            keep_secret(value)
            shown.append(f"{name}={SECRET_MARK}")
        elif place and _OPAQUE.fullmatch(argument):
            keep_secret(argument)
            shown.append(SECRET_MARK)
        else:
            shown.append(without_credentials(argument))
    return shown


def shown_command(command: str) -> str:
    """Return a command as it is written and shown: on one line, without the secrets among its arguments."""
    try:
        arguments = shlex.split(command)
    except ValueError:
        return without_named(command)
    shown = without_secret_arguments(arguments)
    return " ".join(command.split()) if shown == arguments else " ".join(" ".join(shown).split())


def fit_to_show(text: str, *, one_line: bool = False) -> str:
    r"""Return text for people: without secrets (`without_named`), and what steers a terminal as escapes.

    Lines stay apart, unless it has to be `one_line`.
    """
    text = without_named(text)
    return without_steering(" ".join(text.split()) if one_line else text)


def without_steering(text: str) -> str:
    r"""Return text with escapes (`\x1b`) for what a terminal would obey, and for what turns letters around."""
    return text if text.isascii() and text.isprintable() else _STEERING.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def json_without_steering(text: str) -> str:
    """Return JSON text in which the same characters are escapes of JSON, so that it stays the same value."""
    return text if text.isascii() and text.isprintable() else _STEERING.sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def _secrets() -> frozenset[str]:
    """Return what is known to be secret at this moment."""
    # Every text that is shown or written comes by here: to decode the names each time takes longer than all the rest.
    names = tuple(os.environb) if os.supports_bytes_environ else tuple(os.environ)
    named = [value for name in _names_of_secrets(names) if (value := os.environ.get(name, "").strip())]
    return frozenset(_known).union(_in_environment(tuple(named)))


@lru_cache(maxsize=16)
def _names_of_secrets(names: tuple[str, ...] | tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(
        name
        for name in map(os.fsdecode, names)
        if is_secret_name(name) and _NAME_WORDS.findall(name)[-1].lower() not in _NOT_IN_ENVIRONMENT
    )


@lru_cache(maxsize=16)
def _in_environment(values: tuple[str, ...]) -> frozenset[str]:
    return frozenset(
        value
        for value in values
        if len(value) >= SHORTEST_IN_ENVIRONMENT and value.lower() not in _PLACEHOLDERS and not _is_place(value)
    )


def _is_place(value: str) -> bool:
    """Tell whether a value is a path: where a key lies, not the key."""
    try:
        return os.path.exists(value)
    except ValueError:
        return False


def without_known(text: str, secrets: Iterable[str]) -> str:
    """Return a text without these secrets, however JSON has escaped them, at any depth."""
    bare = text.replace("\\", "") if "\\" in text else text
    is_escaped = bare is not text and _ESCAPES.search(text) is not None
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        if secret in bare or is_escaped or not _spells_itself(secret):
            text = _spellings(secret).sub(SECRET_MARK, text)
    return text


@lru_cache(maxsize=256)
def _spells_itself(secret: str) -> bool:
    return secret.isascii() and secret.isprintable() and not set(secret) & set('"\\/')


@lru_cache(maxsize=256)
def _spellings(secret: str) -> re.Pattern[str]:
    """Return what finds a secret however it is escaped; a run of backslashes is looked at once, however long it is."""
    spelt = "".join(
        f"(?:{re.escape(c)}|{_BACKSLASHES}(?:{re.escape(c)}|(?i:u00|x){_hexadecimal(ord(c))}))"
        if ord(c) < 256
        else f"(?:{re.escape(c)}|{_BACKSLASHES}u{ord(c):04x})"
        for c in secret
    )
    around = (r"(?<!\w)", r"(?!\w)") if len(secret) < SHORTEST_SECRET else ("", "")
    return re.compile(rf"{around[0]}(?:(?!\\)|(?<!\\)(?<!\\u005[cC])){spelt}{around[1]}")


def _hexadecimal(code: int) -> str:
    return "".join(f"[{digit.lower()}{digit.upper()}]" for digit in f"{code:02x}")
