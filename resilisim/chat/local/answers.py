"""What local models have in common: small ones ramble, so every answer has an end."""

from __future__ import annotations

DEFAULT_MAX_TOKENS = 512  # of an answer whose request names no limit
