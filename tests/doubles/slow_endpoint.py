"""An OpenAI-compatible endpoint on loopback that takes its time: `python -m tests.doubles.slow_endpoint SECONDS`.

It answers any number of requests at once, each after the given time, from the number of messages alone, so that its own
work is next to nothing. It prints its port, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

# An agent that is asked for the n-th time calls the n-th of these tools, then finishes.
TOOLS = (
    "file_operations_reader",
    "data_processing_parser",
    "data_processing_validator",
    "data_processing_transformer",
    "file_operations_writer",
)
CALLS_PER_EPISODE = len(TOOLS) + 1
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_ASSISTANT = re.compile(rb'"role":\s*"assistant"')


def reply(num_said: int) -> str:
    """Return what the model says after it has said so many things."""
    if num_said >= len(TOOLS):
        return 'Thought: done\nAction: finish {"answer": "done"}'
    return f'Thought: next\nAction: tool_call {{"name": "{TOOLS[num_said]}"}}'


def completion(num_said: int) -> bytes:
    """Return the whole HTTP response."""
    message = {"role": "assistant", "content": reply(num_said)}
    value = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "slow",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020},
    }
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_COMPLETIONS = [completion(number) for number in range(CALLS_PER_EPISODE + 1)]


async def serve(seconds: float) -> None:
    """Answer until standard input ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                body = await reader.readexactly(int(found.group(1)) if found else 0)
                await asyncio.sleep(seconds)
                writer.write(_COMPLETIONS[min(len(_ASSISTANT.findall(body)), CALLS_PER_EPISODE)])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
