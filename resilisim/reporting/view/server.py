"""The server behind `resilisim view`: pages of the runs below a folder, for browsers on this machine only.

It answers GET and nothing else, writes nothing, and loads no code that a run names.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from resilisim import __version__
from resilisim.errors import InvalidInputError, ResiliSimError, shown_value, unknown_name
from resilisim.evaluation.table.comparing import RunComparison, compare_runs
from resilisim.evaluation.table.verdict import comparison_sentence
from resilisim.reporting import report_page
from resilisim.reporting.page import render
from resilisim.reporting.view.pages import (
    RunFilter,
    Side,
    compare_page,
    episodes_page,
    link,
    problem_page,
    runs_page,
)
from resilisim.reporting.view.side_by_side import (
    PAIR_CHOICES,
    Choice,
    FindTask,
    episodes_sentence,
    gone_on,
    pairs_of,
    shown_episode,
)
from resilisim.reporting.view.viewed_runs import RunWatch, ViewedRun
from resilisim.tasks.benchmark import find_task as find_benchmark_task
from resilisim.tool_library import ToolLibrary

LOOPBACK: Final = "127.0.0.1"
_OWN_NAMES: Final = frozenset({LOOPBACK, "localhost", "[::1]"})
_MOST_KEPT: Final = 8  # reports and comparisons, the latest ones


class ViewServer(ThreadingHTTPServer):
    """Serves the pages of the runs below a folder on a port of this machine.

    Args:
        root: The folder.
        port: The port; 0 takes a free one.
        find_task: Returns the task of an id, to play on from a recorded turn; among those of the benchmark if omitted.
        library: The tool library of the runs, if it is not the default one.

    Raises:
        StoreError: It is not a folder.
        InvalidInputError: The port cannot be had.
    """

    daemon_threads = True

    def __init__(
        self,
        root: Path | str,
        port: int = 0,
        *,
        find_task: FindTask = find_benchmark_task,
        library: ToolLibrary | None = None,
    ) -> None:
        self.watch = RunWatch(root)
        self.pages = Pages(self.watch, find_task, library)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InvalidInputError(f"port {port} cannot be had: {error}; expected a free one, or 0") from error

    @property
    def url(self) -> str:
        """Where the pages are."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def serve(self) -> None:
        """Serve until `shutdown` is called, or the process is told to stop."""
        self.watch.start()
        try:
            self.serve_forever()
        finally:
            self.watch.stop()


class Pages:
    """Makes the page of an address."""

    def __init__(self, watch: RunWatch, find_task: FindTask, library: ToolLibrary | None) -> None:
        self._watch, self._find_task, self._library = watch, find_task, library
        self._kept: dict[tuple[object, ...], Any] = {}
        # One page at a time: a report or a comparison may take a second of one core.
        self._lock = threading.Lock()

    def page(self, path: str, query: Mapping[str, str]) -> tuple[HTTPStatus, bytes | str]:
        """Return the page of an address, or where it leads.

        Raises:
            ResiliSimError: There is no such page, or it cannot be made.
        """
        makers = {
            "/": self._runs,
            "/report": self._report,
            "/compare": self._compare,
            "/episodes": self._episodes,
            "/optimum": self._optimum,
        }
        make = makers.get(path)
        if make is None:
            raise unknown_name("page", path, makers)
        with self._lock:
            made = make(query)
        return (HTTPStatus.SEE_OTHER if isinstance(made, str) else HTTPStatus.OK), made

    def _runs(self, query: Mapping[str, str]) -> bytes:
        runs = [*self._watch.runs.values()]
        return runs_page(self._watch.root.name or "/", runs, self._watch.is_complete, RunFilter.of(query))

    def _run(self, query: Mapping[str, str], name: str) -> ViewedRun:
        wanted = query.get(name, "")
        run = self._watch.runs.get(wanted)
        if run is None:
            words = "yet: it is being read" if not self._watch.is_complete else "below this folder"
            raise InvalidInputError(f"there is no run {shown_value(wanted)} {words}")
        if run.problem is not None:
            raise InvalidInputError(f"{run.label} is broken: {run.problem}")
        return run

    def _report(self, query: Mapping[str, str]) -> bytes:
        run = self._run(query, "run")
        bar = render("view-bar.html", link=link, run=run)
        return cast(
            "bytes", self._once(("report", run.name, len(run.episodes)), lambda: report_page(run.directory, bar=bar))
        )

    def _compare(self, query: Mapping[str, str]) -> bytes | str:
        if "agent_a" not in query and "\n" in query.get("a", "").replace("\r", ""):
            a, b = (query.get(side, "").replace("\r", "").partition("\n") for side in "ab")
            return link("/compare", a=a[0], agent_a=a[2], b=b[0], agent_b=b[2])
        sides = (self._side(query, "a"), self._side(query, "b"))
        prompt = query.get("prompt") or None
        (run_a, policy_a), (run_b, policy_b) = sides
        pairs = pairs_of(run_a, policy_a, run_b, policy_b, prompt)

        def compared() -> RunComparison | str:
            try:
                return compare_runs(run_a.directory, run_b.directory, policy_a, policy_b, prompt)
            except ResiliSimError as error:
                return str(error)

        numbers = (len(run_a.episodes), len(run_b.episodes))
        names = (run_a.name, policy_a, run_b.name, policy_b, prompt)
        comparison = self._once(("compare", *names, *numbers), compared)
        sentence = comparison if isinstance(comparison, str) else comparison_sentence(comparison.pooled)
        first = _whole_number(query, "first", 0)
        return compare_page(sides, prompt, comparison, sentence, pairs, _choice(query), max(first, 0))

    def _side(self, query: Mapping[str, str], side: str) -> tuple[ViewedRun, str]:
        run = self._run(query, side)
        policy = query.get(f"agent_{side}", "")
        if policy not in run.policies:
            raise unknown_name("agent", policy, run.policies, run.label)
        return run, policy

    def _episodes(self, query: Mapping[str, str]) -> bytes:
        sides = (self._side(query, "a"), self._side(query, "b"))
        indices = tuple(_whole_number(query, f"of_{side}") for side in "ab")
        choice, prompt = _choice(query), query.get("prompt") or None
        (run_a, policy_a), (run_b, policy_b) = sides
        listed = [
            pair for pair in pairs_of(run_a, policy_a, run_b, policy_b, prompt) if pair.is_listed(choice)
        ]  # fmt: skip
        place = next((number for number, pair in enumerate(listed) if (pair.a.number, pair.b.number) == indices), None)
        fixed = {"a": run_a.name, "agent_a": policy_a, "b": run_b.name, "agent_b": policy_b}
        kept = {**fixed, "prompt": prompt, "choice": choice}

        def beside(step: int) -> str | None:
            if place is None or not 0 <= place + step < len(listed):
                return None
            pair = listed[place + step]
            return link("/episodes", **kept, of_a=pair.a.number, of_b=pair.b.number)

        links = {"back": link("/compare", **kept) + "#pairs", "previous": beside(-1), "next": beside(1)}
        a, b = (
            Side(policy, run, shown_episode(run, run.record(index), self._library))
            for (run, policy), index in zip(sides, indices, strict=True)
        )
        if (a.record["instance_id"], a.record["seed"]) != (b.record["instance_id"], b.record["seed"]):
            raise InvalidInputError("the two are not of one task and seed: expected episodes on the same draws")
        return episodes_page((a, b), episodes_sentence(a.name, a.record, b.name, b.record), links)

    def _optimum(self, query: Mapping[str, str]) -> bytes:
        run, turn = self._run(query, "run"), _whole_number(query, "turn")
        record = run.record(_whole_number(query, "episode"))
        again = gone_on(run, record, turn, self._find_task, self._library)
        back = link("/report", run=run.name) + f"#episode-{record['index']}"
        sides = (
            Side(record["policy"], run, shown_episode(run, record, self._library)),
            Side(f"the optimum from turn {turn} on", run, shown_episode(run, again, self._library), can_go_on=False),
        )
        sentence = episodes_sentence(sides[0].name, record, sides[1].name, again)
        return episodes_page(sides, sentence, {"back": back, "previous": None, "next": None})

    def _once(self, key: tuple[object, ...], make: Any) -> Any:
        """Return what was made for a key before, or make it; only the latest are kept."""
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[key]


def _whole_number(query: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    text = query.get(name, "")
    if not text and otherwise is not None:
        return otherwise
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidInputError(f"{name} is {shown_value(text)}: expected a whole number")
    return int(text)


def _choice(query: Mapping[str, str]) -> Choice:
    choice = query.get("choice", "apart")
    if choice not in PAIR_CHOICES:
        raise unknown_name("choice", choice, PAIR_CHOICES)
    return cast("Choice", choice)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server_version = f"ResiliSim/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30.0

    def do_GET(self) -> None:
        """Send a page."""
        server = cast("ViewServer", self.server)
        address = urlsplit(self.path)
        # A page of another host whose name leads here (DNS rebinding) would read what is shown.
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        try:
            if host not in _OWN_NAMES:
                raise _ForeignHostError(f"{shown_value(host)} is not this machine: expected {server.url}")
            query = dict(parse_qsl(address.query, max_num_fields=20))
            status, page = server.pages.page(address.path, query)
        except _ForeignHostError as error:
            status, page = HTTPStatus.FORBIDDEN, problem_page(str(error))
        except (ResiliSimError, ValueError) as error:
            status, page = HTTPStatus.NOT_FOUND, problem_page(str(error))
        self._send(status, page)

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, page: bytes | str) -> None:
        body = page if isinstance(page, bytes) else b""
        self.send_response(status)
        if isinstance(page, str):
            self.send_header("Location", page)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # whoever asked has gone

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal tells where the pages are, and that is all."""


class _ForeignHostError(InvalidInputError):
    """A request was sent to another name than this machine's."""
