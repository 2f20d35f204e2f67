"""What every door has to pass: episodes through it are those of Conversation-v0, for scripted policies of each kind.

A loopback endpoint plays the policies: what it replies is a function of the messages that it is sent, so the same
policy can also be played on the environment itself, and both episodes have to be one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from resilisim import benchmark_tasks
from resilisim.envs import ConversationEnv, EnvironmentSettings, Session
from resilisim.evaluation.episode.play import Judging
from resilisim.workflows import parse_plan

Messages = Sequence[Mapping[str, Any]]
# Messages of a chat so far, and the functions that are offered: what is replied, as an assistant message.
Player = Callable[[Messages, list[str]], dict[str, Any]]

# How many tasks are played, each with each seed; the suite's own test takes fewer.
NUM_TASKS, SEEDS, PROMPT = int(os.environ.get("GATE_TASKS", "12")), (0, 1, 2), "optimal"
COMPARED = ("outcome", "optimum", "regret", "luck", "ended_by", "score")
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}  # of each reply of the endpoint
NATIVE = EnvironmentSettings(tools="native", protocol="native")
DONE: dict[str, Any] = {"role": "assistant", "content": "The task is complete."}

_RESULT = re.compile(r"\b(\w+) (executed successfully|failed)(?:\.| because of its dependencies\.)")
_ENDED = "The episode has ended"


def follower(messages: Messages, functions: list[str]) -> dict[str, Any]:
    """Follow the plan in the prompt: each step until it has succeeded, then finish."""
    return _next_of(plan_of(messages), messages, functions)


def backwards(messages: Messages, functions: list[str]) -> dict[str, Any]:
    """Follow the plan from its last step to its first, each until it has succeeded."""
    return _next_of(plan_of(messages)[::-1], messages, functions)


def _next_of(steps: Sequence[str], messages: Messages, functions: list[str]) -> dict[str, Any]:
    said = all_text(messages)
    if _ENDED in said:
        return DONE
    waiting = [name for name in steps if f"{name} executed successfully" not in said]
    return says(waiting[0] if waiting else "finish", {}, messages, functions)


def hasty(messages: Messages, functions: list[str]) -> dict[str, Any]:
    """Make each step once, and say in words that everything is done."""
    steps, made = plan_of(messages), len(_RESULT.findall(all_text(messages)))
    if made >= len(steps) or _ENDED in all_text(messages):
        return DONE
    return says(steps[made], {}, messages, functions)


def stubborn(messages: Messages, functions: list[str]) -> dict[str, Any]:
    """Call the first step again and again, even when it was told that the episode has ended."""
    return says(plan_of(messages)[0], {}, messages, functions)


def dice(messages: Messages, functions: list[str]) -> dict[str, Any]:
    """Call tools at random: some that do not exist, some with arguments that do not fit, now and then only words."""
    text = prompt_of(messages) + str(len(messages))
    draw = random.Random(hashlib.sha256(text.encode()).hexdigest())
    kind = draw.random()
    name = draw.choice(plan_of(messages))
    if kind < 0.06:
        return {"role": "assistant", "content": "Let me think about what to do next."}
    if kind < 0.12:
        return says("no_such_tool", {}, messages, functions)
    if kind < 0.18:
        return says(name, {"bogus": 1}, messages, functions)
    if kind < 0.24:
        return says(name, {"source": ["of", "another", "type"]}, messages, functions)
    if kind < 0.3:
        return says("finish", {}, messages, functions)
    return says(name, {}, messages, functions)


def talker(messages: Messages, functions: list[str]) -> dict[str, Any]:
    """Call two tools, and say in words that everything is done."""
    steps = plan_of(messages)
    made = sum(message["role"] == "assistant" for message in messages)
    return says(steps[made], {}, messages, functions) if made < min(2, len(steps)) else DONE


PLAYERS: dict[str, Player] = {
    player.__name__: player for player in (follower, backwards, hasty, stubborn, dice, talker)
}
MODELS = ("follower", "dice", "talker")  # play where every reply of a model is one message
CALLERS = ("follower", "backwards", "hasty", "stubborn")  # play where an agent's loop ends with words alone


def says(name: str, arguments: Mapping[str, Any], messages: Messages, functions: list[str]) -> dict[str, Any]:
    """Return a call as an assistant message: of a function if there are any, else in tags."""
    if not functions:
        given = f" {json.dumps(arguments)}" if arguments else ""
        return {
            "role": "assistant",
            "content": "<finish/>" if name == "finish" else f"<tool_call>{name}{given}</tool_call>",
        }
    call = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{len(messages)}", "type": "function", "function": call}],
    }


def next_tool(player: str, prompt: str, said: str) -> str:
    """Return the tool that a caller calls next, from the prompt and all that was said since; words are `finish`."""
    messages = [{"role": "user", "content": prompt}, {"role": "tool", "content": said}]
    calls = PLAYERS[player](messages, ["finish"]).get("tool_calls")
    return str(calls[0]["function"]["name"]) if calls else "finish"


def words(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content may be parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def prompt_of(messages: Messages) -> str:
    """Return the text of the message that holds the plan; frameworks put instructions of their own before it."""
    return next(text for text in map(words, messages) if parse_plan(text))


def plan_of(messages: Messages) -> list[str]:
    """Return the steps of the plan."""
    return list(parse_plan(prompt_of(messages)))


def all_text(messages: Messages) -> str:
    """Return what the environment has said since the prompt."""
    begin = next(place for place, message in enumerate(messages) if parse_plan(words(message)))
    return "\n".join(words(message) for message in messages[begin + 1 :] if message["role"] != "assistant")


def reference(
    player: Player, settings: EnvironmentSettings, task: Any, seed: int, prompt: str = PROMPT
) -> dict[str, Any]:
    """Return the record of the same player on Conversation-v0 itself."""
    judging = Judging()
    session = Session(ConversationEnv(settings), task, prompt, seed, observers=[judging])
    native = settings.protocol == "native"
    functions = [entry["function"]["name"] for entry in session.reply.info["functions"]] if native else []
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": session.reply.text}]
    while not session.ended:
        said = player(messages, functions)
        messages += [said, *session.send(said if native else said["content"]).messages]
    return dict(judging.record("reference"))


def tasks() -> list[Any]:
    """Return the tasks that are played."""
    return list(benchmark_tasks()[:NUM_TASKS])


def compare(
    door: str,
    played: Mapping[tuple[str, str, int], Mapping[str, Any]],
    players: Sequence[str] = CALLERS,
    settings: EnvironmentSettings = NATIVE,
) -> None:
    """Compare records by player, task and seed with those of Conversation-v0; the process ends if any differs."""
    wanted = {(name, task.instance_id, seed) for name in players for task in tasks() for seed in SEEDS}
    assert set(played) == wanted, (
        f"{len(wanted - set(played))} episodes are missing, {len(set(played) - wanted)} are too many"
    )
    by_id = {task.instance_id: task for task in tasks()}
    outcomes = set()
    for name, task, seed in sorted(wanted):
        mine, theirs = reference(PLAYERS[name], settings, by_id[task], seed), played[name, task, seed]
        for field in COMPARED:
            assert mine[field] == theirs[field], (
                f"{door}, {name}, {task}, {seed}: {field} {theirs[field]} is not {mine[field]}"
            )
        assert [step["tool"] for step in mine["steps"]] == [step["tool"] for step in theirs["steps"]]
        outcomes.add(mine["outcome"])
    assert outcomes == {0, 1}, "the policies were meant to succeed and to fail"
    print(f"{door}: {len(wanted)} episodes are those of Conversation-v0 ({', '.join(players)})")


class Endpoint:
    """An OpenAI-compatible endpoint on loopback; the model's name says who plays, "broken" answers status 500.

    Replies are streamed if the request says so.

    Attributes:
        requests: The bodies that were asked, in the order in which they came.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._server = _Server(self.requests)

    @property
    def url(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Endpoint:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        self.requests = requests
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._send(json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in PLAYERS]}))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(asked)
        player = PLAYERS.get(asked["model"].rpartition("/")[2])
        if player is None:
            self._send(json.dumps({"error": {"message": "it is broken", "type": "test"}}), status=500)
            return
        functions = [tool["function"]["name"] for tool in asked.get("tools") or ()]
        message = player(asked["messages"], functions)
        if message is DONE and "final_answer" in functions:  # smolagents: words are a call, too
            message = says("final_answer", {"answer": "done"}, asked["messages"], functions)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        about = {"id": "chatcmpl-1", "created": 0, "model": asked["model"]}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send(json.dumps({**about, "object": "chat.completion", "choices": [choice], "usage": USAGE}))
            return
        delta = {**message}
        if "tool_calls" in message:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {"choices": [], "usage": USAGE},
        ]
        lines = [json.dumps({**about, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
        self._send("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), "text/event-stream")

    def _send(self, body: str, kind: str = "application/json", status: int = 200) -> None:
        encoded = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""
