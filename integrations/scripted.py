"""An OpenAI-compatible endpoint on loopback whose models are scripts: they read the plan in the prompt and the results.

Its models are named after what they do (`SCRIPTS`). The same scripts play Conversation-v0, so that whatever reaches the
environment through another door can be compared with it: outcome, V*, regret and score of each task, seed and script.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from resilisim import benchmark_tasks
from resilisim.envs import ConversationEnv
from resilisim.evaluation import play_episode
from resilisim.policies.base import FINISH, call_message
from resilisim.tasks import find_task
from resilisim.workflows import parse_plan

# How each follows the plan: each step until it succeeds; each step once; from the last step to the first; its first
# step again and again, even when it was told that the episode has ended.
SCRIPTS: Final = ("persistent", "hasty", "backwards", "stubborn")
USAGE: Final = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}  # of each reply

SCORES: Final = ("outcome", "optimum", "regret", "score")
TASKS: Final = tuple(task.instance_id for task in benchmark_tasks()[:8])
SEEDS: Final = (0, 1)

_RESULT = re.compile(r"\b(\w+) (executed successfully|failed)(?:\.| because of its dependencies\.)")
_ENDED = "The episode has ended"


def next_tool(script: str, prompt: str, results: str) -> str | None:
    """Return the tool that a script calls next, from the prompt and all that was said since; None if it is through."""
    plan = parse_plan(prompt)
    calls = [(tool, words == "executed successfully") for tool, words in _RESULT.findall(results)]
    if script == "stubborn":
        return plan[0]
    if _ENDED in results:
        return None
    if script == "hasty":
        return plan[len(calls)] if len(calls) < len(plan) else None
    succeeded = {tool for tool, success in calls if success}
    order = reversed(plan) if script == "backwards" else plan
    return next((tool for tool in order if tool not in succeeded), None)


class ScriptedEndpoint:
    """The server; use it in a `with` block.

    Attributes:
        requests: The bodies that were asked, in the order in which they came.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ScriptedEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def reply_to(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the assistant message of a script: a native call, or words when it is through."""
    texts = [_text_of(message) for message in body["messages"]]
    begin = next(index for index, text in enumerate(texts) if parse_plan(text))
    later = zip(body["messages"][begin + 1 :], texts[begin + 1 :], strict=True)
    results = "\n".join(text for message, text in later if message["role"] != "assistant")
    offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
    tool = next_tool(str(body["model"]), texts[begin], results)
    if tool is None and _ENDED not in results and body["model"] != "hasty":
        tool = "finish"  # the hasty one says it in words alone
    if tool is None and "final_answer" in offered:  # smolagents: words are a call, too
        return _call("final_answer", {"answer": "done"})
    return {"role": "assistant", "content": "done"} if tool is None else _call(tool, {})


_NUMBERS = itertools.count(1)


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{next(_NUMBERS)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, owner: ScriptedEndpoint) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Tell which models there are."""
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in SCRIPTS]
        self._send("application/json", json.dumps({"object": "list", "data": models}))

    def do_POST(self) -> None:
        """Answer a chat completion, whole or as a stream."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.owner.requests.append(body)
        message = reply_to(body)
        base = {"id": "chatcmpl-1", "created": 0, "model": body["model"]}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            value = {**base, "object": "chat.completion", "choices": [choice], "usage": USAGE}
            self._send("application/json", json.dumps(value))
            return
        calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))]
        delta = {**message, "tool_calls": calls} if calls else message
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {"choices": [], "usage": USAGE},
        ]
        lines = [json.dumps({**base, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
        self._send("text/event-stream", _events([*lines, "[DONE]"]))

    def _send(self, kind: str, text: str) -> None:
        payload = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


def _events(lines: Iterable[str]) -> str:
    return "".join(f"data: {line}\n\n" for line in lines)


class ScriptedPolicy:
    """A script as a policy of Conversation-v0."""

    def __init__(self, script: str) -> None:
        self.name = script

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Read the prompt."""
        self._prompt, self._results = observation, ""

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the script's next call, read from all that was said."""
        if observation != self._prompt:
            self._results += observation + "\n"
        tool = next_tool(self.name, self._prompt, self._results)
        return FINISH if tool is None else call_message(tool, {})


def reference(task: str, seed: int, script: str, **options: Any) -> dict[str, Any]:
    """Return what a script comes to in Conversation-v0, spoken to in tags."""
    env = ConversationEnv(**options)
    return scores_of(play_episode(env, ScriptedPolicy(script), find_task(task), "optimal", seed))


def scores_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same through every door."""
    return {name: record[name] for name in SCORES}


def check(door: str, played: Iterable[tuple[str, int, str, Mapping[str, Any]]]) -> int:
    """Compare episodes (task, seed, script, record) with those of Conversation-v0, and return how many there were.

    Raises:
        AssertionError: One differs, or all came to the same, which would compare nothing.
    """
    outcomes = set()
    count = 0
    for task, seed, script, record in played:
        expected, found = reference(task, seed, script), scores_of(record)
        assert found == expected, f"{door}: {task}, seed {seed}, {script}: {found} instead of {expected}"
        outcomes.add((found["outcome"], found["regret"] > 0))
        count += 1
    assert len(outcomes) > 1, f"{door}: all {count} episodes came to {outcomes}"
    print(f"{door}: {count} episodes are those of Conversation-v0")
    return count
