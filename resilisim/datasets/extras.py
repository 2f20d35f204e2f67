"""Packages that only datasets need, imported when they are used first."""

from __future__ import annotations

import importlib
from typing import Any

from resilisim.errors import MissingExtraError


def require(module: str) -> Any:
    """Import a module of the extra `datasets`.

    Raises:
        MissingExtraError: It is not installed; the text says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"Parquet needs {module!r} ({error}): pip install 'resilisim[datasets]'"
        raise MissingExtraError(message) from error
