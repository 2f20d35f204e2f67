"""A real HTTP server on loopback that plays an OpenAI-compatible endpoint: well, badly, or not at all.

What it answers is a function of the request it sees, so answers do not depend on the order in which requests come:

    with LoopbackServer(lambda seen: completion("Hello")) as server:
        model = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal


@dataclass(frozen=True)
class Seen:
    """A request as it came: its number from 1, path, headers (names in lower case) and body."""

    number: int
    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def last_message(self) -> str:
        """Content of the last message."""
        return str(self.body["messages"][-1]["content"])


@dataclass(frozen=True)
class Answer:
    """What goes back.

    `sent_bytes` is how much of the body is really sent before the connection is closed; None sends all. The kind
    "close" closes without a byte, "hang" never sends one, "drip" sends one every 4 ms, and "endless" repeats the body
    until the client hangs up.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    sent_bytes: int | None = None
    kind: Literal["answer", "close", "hang", "drip", "endless"] = "answer"


def completion(text: str | None, **more: Any) -> Answer:
    """A proper chat completion; `more` replaces fields of the choice (`finish_reason`), of message or usage."""
    message = {"role": "assistant", "content": text, **more.pop("message", {})}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, **more.pop("usage", {})}
    value = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "loopback-model",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **more}],
        "usage": usage,
    }
    return json_answer(value)


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    """Any JSON."""
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


def error(status: int, message: str = "it is broken", **headers: str) -> Answer:
    """An error in OpenAI's form; header names are given with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return json_answer({"error": {"message": message, "type": "test", "param": None, "code": None}}, status, **named)


def rate_limited(seconds: str | None = "3") -> Answer:
    """Status 429, with a time to wait unless it is None."""
    return error(429, "too many requests", **({} if seconds is None else {"Retry_After": seconds}))


def not_json() -> Answer:
    """Status 200 with a page that a proxy might send."""
    return Answer(200, b"<html><body>Welcome</body></html>", {"Content-Type": "text/html"})


def other_schema() -> Answer:
    """JSON of another interface."""
    return json_answer({"output": [{"text": "hello"}]})


def empty_body() -> Answer:
    """Status 200 and nothing."""
    return Answer(200, b"", {"Content-Type": "application/json"})


def cut_stream(text: str = "an answer that does not arrive whole") -> Answer:
    """A completion of which half is sent."""
    whole = completion(text)
    return replace(whole, sent_bytes=len(whole.body) // 2)


def nothing() -> Answer:
    """The connection is closed without a byte."""
    return Answer(kind="close")


def hanging() -> Answer:
    """No byte is ever sent; released when the server stops."""
    return Answer(kind="hang")


def dripping(text: str = "slowly") -> Answer:
    """A completion of which a byte is sent every 4 ms."""
    return replace(completion(text), kind="drip")


def endless(part: bytes = b"again and " * 10_000) -> Answer:
    """A body that never ends; no header says how long it is."""
    return Answer(200, part, {"Content-Type": "application/json"}, kind="endless")


Answerer = Callable[[Seen], Answer]


def in_turn(*answers: Answer) -> Answerer:
    """Give one answer after the other, whatever is asked; the last one from then on."""
    lock = threading.Lock()
    waiting: Iterator[Answer] = iter(answers[:-1])

    def answer(seen: Seen) -> Answer:
        with lock:
            return next(waiting, answers[-1])

    return answer


class LoopbackServer:
    """The server; a thread for each connection. It `keeps_requests` to be looked at unless it serves for long."""

    def __init__(self, answerer: Answerer, keeps_requests: bool = True) -> None:
        self.requests: list[Seen] = []  # everything that was asked, in the order in which it came
        self.num_requests = 0
        self.most_in_flight = 0
        self.bytes_of_endless = 0  # that were sent
        self.stopping = threading.Event()
        self._answerer = answerer
        self._keeps_requests = keeps_requests
        self._in_flight = 0
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> LoopbackServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Note a request and find its answer."""
        with self._lock:
            self.num_requests += 1
            seen = Seen(self.num_requests, path, headers, json.loads(body))
            if self._keeps_requests:
                self.requests.append(seen)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            return self._answerer(seen)
        finally:
            with self._lock:
                self._in_flight -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, owner: LoopbackServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent when a client hangs up; a mistake of an answerer is told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # the client has hung up between its head and its body
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.owner.answer(self.path, headers, body)
        if answer.kind in ("close", "hang"):
            if answer.kind == "hang":
                self.server.owner.stopping.wait()
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.kind == "endless":
            self.end_headers()
            self.close_connection = True
            while not self.server.owner.stopping.is_set():
                self.wfile.write(answer.body)  # raises when the client has hung up
                self.server.owner.bytes_of_endless += len(answer.body)
            return
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if answer.kind == "drip":
            for byte in answer.body:
                if self.server.owner.stopping.wait(0.004):
                    break
                self.wfile.write(bytes([byte]))
        else:
            self.wfile.write(answer.body[: answer.sent_bytes])
        self.close_connection = answer.sent_bytes is not None or answer.kind == "drip"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""
