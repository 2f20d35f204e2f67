"""Where an OpenAI-compatible endpoint is and by which key it is asked; nobody but the client is given the key."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from resilisim.errors import InvalidInputError

BASE_URL_VARIABLE = "OPENAI_BASE_URL"
API_KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_BASE_URL = "https://api.openai.com/v1"
KEY_MARK = "[key]"  # stands where a key stood
NO_KEY = "none"  # what is sent to an endpoint that needs no key; the client library insists on one
# Shorter ones are the "EMPTY" and "test" that local servers are given: no secrets, and words that answers may hold.
SHORTEST_SECRET = 12

# What keys of common services look like, also when an endpoint repeats one cut or masked.
_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|key)-[\w*.\-]{4,}|\bBearer\s+\S+", re.IGNORECASE)

# A backslash, or several of them, which JSON may spell as escapes in their turn.
_BACKSLASHES = r"\\(?:\\|u005[cC])*"


@lru_cache(maxsize=64)
def _spellings(key: str) -> re.Pattern[str]:
    """Return what finds a key however it is escaped; a run of backslashes is looked at once, however long it is."""
    spelt = [f"(?:{re.escape(c)}|{_BACKSLASHES}(?:{re.escape(c)}|(?i:u00|x){_hexadecimal(ord(c))}))" for c in key]
    return re.compile(rf"(?:(?!\\)|(?<!\\)(?<!\\u005[cC])){''.join(spelt)}")


def _hexadecimal(code: int) -> str:
    return "".join(f"[{digit.lower()}{digit.upper()}]" for digit in f"{code:02x}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and its key.

    Attributes:
        url: The address, without a slash at its end.
        key: The key, or `NO_KEY`.
    """

    url: str
    key: str = field(repr=False)

    def without_key(self, text: str) -> str:
        """Return a text in which the key does not stand, if it is long enough to be a secret.

        Also not spelt with the escapes of JSON, at any depth: a call's arguments are JSON within JSON, and whoever
        decodes them would have the key.
        """
        return text if len(self.key) < SHORTEST_SECRET else _spellings(self.key).sub(KEY_MARK, text)

    def excerpt(self, text: str, length: int = 200) -> str:
        """Return the beginning of an endpoint's own words on one line, without anything that looks like a key."""
        line = _KEY_LIKE.sub(KEY_MARK, self.without_key(" ".join(text.split())))
        line = line.encode("utf-8", "replace").decode("utf-8")
        return line if len(line) <= length else line[: length - 3] + "..."


def endpoint_url(base_url: str | None = None) -> str:
    """Return the address of the endpoint: the one given, else the environment's, else OpenAI's.

    Raises:
        InvalidInputError: It is no address, or holds more than one may: credentials would end up in records, and the
            client library would lose a query.
    """
    where, given = "base URL", base_url
    if given is None:
        where, given = BASE_URL_VARIABLE, os.environ.get(BASE_URL_VARIABLE, "").strip() or DEFAULT_BASE_URL
    try:
        parts = urlsplit(given.strip())
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError:
        has_host, parts = False, urlsplit("")
    if parts.scheme not in ("http", "https") or not has_host or any(c.isspace() for c in given.strip()):
        # The text is not repeated: it may be a key that was put into the wrong place.
        raise InvalidInputError(f"{where}: no address of a web service; expected one such as {DEFAULT_BASE_URL!r}")
    if "@" in parts.netloc:
        raise InvalidInputError(f"{where}: holds credentials; expected an address alone, and the key in OPENAI_API_KEY")
    if parts.query or parts.fragment:
        raise InvalidInputError(f"{where}: holds a query or a fragment; expected one such as {DEFAULT_BASE_URL!r}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def find_endpoint(base_url: str | None = None, api_key: str | None = None) -> Endpoint:
    """Return address and key, each as given, else from the environment.

    An endpoint other than OpenAI's own may need no key.

    Raises:
        InvalidInputError: The address is none, OpenAI's endpoint is asked without a key, or the key cannot be one.
    """
    url = endpoint_url(base_url)
    key = (os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key).strip()
    if not key and urlsplit(url).hostname == urlsplit(DEFAULT_BASE_URL).hostname:
        raise InvalidInputError(
            f"{url} needs a key: set {API_KEY_VARIABLE}, or name another endpoint in {BASE_URL_VARIABLE} or --base-url"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInputError(f"{API_KEY_VARIABLE}: not a key; expected printable ASCII characters without spaces")
    return Endpoint(url, key or NO_KEY)
