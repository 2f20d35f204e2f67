"""The certificates that this machine trusts, which connections to endpoints, APIs and servers are checked against."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any


def trusted_certificates(library: Any) -> ssl.SSLContext:
    """Return what an HTTP library checks connections with, read once in a process: that takes it 50 ms for each client.

    Args:
        library: `httpx2`, or `httpx`, whose own rules say where the certificates are.
    """
    return _read(library, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _read(library: Any, file: str | None, folder: str | None) -> ssl.SSLContext:
    context: ssl.SSLContext = library.create_ssl_context()
    return context
