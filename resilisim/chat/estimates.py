"""Tokens without a tokenizer: an estimate for planning and for endpoints that do not count, never a bill.

The rule: a quarter of the bytes of the UTF-8 text, rounded up, and 4 tokens for the frame of each message. English
prose in common vocabularies has about four letters a token; counting bytes keeps scripts of several bytes a letter
from being underestimated.
"""

from __future__ import annotations

from resilisim.chat.types import ChatRequest
from resilisim.provenance import canonical_json

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def estimated_prompt_tokens(request: ChatRequest) -> int:
    """Return about how many tokens the prompt of a request has, its tools' definitions included."""
    texts = [message.content for message in request.messages]
    texts += [call.name + call.arguments for message in request.messages for call in message.tool_calls]
    texts += [canonical_json(dict(tool)) for tool in request.tools]
    return TOKENS_PER_MESSAGE * len(request.messages) + sum(estimated_tokens(text) for text in texts)
