"""Asking: one task at a time or many in their order, what became of each, and what a run would ask before it asks.

An answer is checked; one that cannot be used is sent back with what is wrong with it, and after the last one the
original is kept. What became of a task is a value, whatever the model wrote. The file of enhanced tasks has one line
each in the order of the tasks, and beside it what it was made with: the same command on the same file goes on after its
last whole line; any other command is refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from resilisim.bounds import Count, CountOrNone, Seed, Temperature, checked
from resilisim.chat import ChatMessage, ChatModel, ChatReply, ChatRequest, RequestRefusedError, TokenUsage
from resilisim.chat.checked_answers import LONGEST_REPEATED_ANSWER, Refusal, ask_until_usable, correction
from resilisim.chat.types import estimated_prompt_tokens
from resilisim.errors import InfrastructureError, InvalidInputError, ResiliSimError, StoreError, one_line
from resilisim.options import check_options, option
from resilisim.provenance import content_hash, encode_json, without_surrogates
from resilisim.run_folder import Closing, JsonLinesWriter, claim, read_json_lines, run_manifest, write_manifest
from resilisim.tasks.enhancement.questions import TASK_REFUSALS
from resilisim.tasks.task import Task

T = TypeVar("T")
R = TypeVar("R")

Outcome = Literal["enhanced", "refused", "failed"]

MAX_DETAIL_LENGTH = 300  # characters; details may repeat what a model wrote
ROLE = "task_writer"  # the component that asks, in counts of calls
DEFAULT_MAX_TOKENS = 1500
DEFAULT_CONCURRENCY = 8
DEFAULT_GIVE_UP_AFTER = 50
WINDOW_PER_SLOT = 4  # tasks begun or finished but not yet handed on, for each that may be under way


class EnhancementMode(Protocol):
    """What is asked about a task, and what an answer is worth; it needs no network and keeps no state of its own."""

    @property
    def name(self) -> str:
        """The mode's name in commands and metadata."""
        ...

    def ask(self, task: Task) -> tuple[ChatMessage, ...]:
        """Return the question for a task."""
        ...

    def read(self, task: Task, answer: str) -> Task:
        """Return what an answer makes of the task; raises `RefusedAnswer` for whatever cannot be used of it."""
        ...


@dataclass(frozen=True, slots=True)
class EnhancementOptions:
    """How a model is asked."""

    temperature: Temperature | None = option(None, "The model's own if left out.")
    max_tokens: Count = option(DEFAULT_MAX_TOKENS, "Longest answer in tokens.")
    seed: Seed | None = option(
        None, "Seed sent to the model; a different one asks again instead of taking cached answers."
    )
    re_asks: CountOrNone = option(1, "How often an unusable answer is sent back with the reason.")

    def __post_init__(self) -> None:
        """Refuse numbers that no model takes."""
        check_options(self)

    def request(self, messages: tuple[ChatMessage, ...]) -> ChatRequest:
        """Return the request with these messages."""
        return ChatRequest(
            messages, role=ROLE, temperature=self.temperature, max_tokens=self.max_tokens, seed=self.seed
        )


@dataclass(frozen=True, slots=True)
class CallCount:
    """Calls of a model and their tokens; those from a cache are counted apart, for nobody pays them."""

    calls: int = 0
    cached_calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)

    def __add__(self, other: CallCount) -> CallCount:
        """Return the sum."""
        return CallCount(self.calls + other.calls, self.cached_calls + other.cached_calls, self.usage + other.usage)


@dataclass(frozen=True, slots=True)
class Enhancement:
    """A task and what became of it.

    Attributes:
        task: The better task, or the original; either way its metadata says which under `enhancement`.
        original: The task as it was given.
        outcome: "enhanced", "refused" (no answer of the model could be used), "failed" (the endpoint gave none).
        reason: Of a refusal its kind, of a failure "endpoint"; None for an enhanced task.
        count: What it took.
        error: The endpoint's failure.
    """

    task: Task
    original: Task
    outcome: Outcome
    reason: str | None = None
    count: CallCount = CallCount()
    error: ResiliSimError | None = None


def _told(
    outcome: Outcome,
    original: Task,
    made_by: Mapping[str, Any],
    count: CallCount,
    *,
    task: Task | None = None,
    reason: str | None = None,
    detail: str | None = None,
    error: ResiliSimError | None = None,
) -> Enhancement:
    """Return what became of a task, told in its metadata; `made_by` is mode, model and the id of the original."""
    facts = {**made_by, "outcome": outcome, "reason": reason, "detail": detail}
    base = original if task is None else task
    written = {} if task is None else {"llm_generated": True}
    described = dataclasses.replace(base, metadata={**base.metadata, **written, "enhancement": facts})
    return Enhancement(described, original, outcome, reason, count, error)


def refused(original: Task, refusal: Refusal, facts: Mapping[str, Any], count: CallCount) -> Enhancement:
    """Return the outcome of answers of which none could be used: the original, with the reason of the last one."""
    made_by = {key: facts[key] for key in ("mode", "model", "made_from")}
    # Details may repeat what a model wrote: every file can hold them as valid Unicode, on one line, not long.
    detail = one_line(without_surrogates(refusal.detail), MAX_DETAIL_LENGTH)
    return _told("refused", original, made_by, count, reason=refusal.kind, detail=detail)


@dataclass(slots=True)
class EnhancementTotals:
    """Counts over many tasks.

    Attributes:
        outcomes: Tasks by outcome.
        refusals: Refused tasks by reason.
        count: Calls and tokens of this run; tasks that an earlier run finished add nothing to it.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    count: CallCount = CallCount()

    def add(self, enhancement: Enhancement) -> None:
        """Count one task."""
        self.add_written(enhancement.task.metadata)
        self.count = self.count + enhancement.count

    def add_written(self, metadata: Mapping[str, Any]) -> None:
        """Count one task that a file holds, by its metadata."""
        facts = metadata["enhancement"]
        self.outcomes[facts["outcome"]] += 1
        if facts["outcome"] == "refused":
            self.refusals[str(facts.get("reason"))] += 1

    def to_mapping(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "tasks": self.outcomes.total(),
            **{outcome: self.outcomes[outcome] for outcome in ("enhanced", "refused", "failed")},
            "refusals": {kind: self.refusals[kind] for kind in TASK_REFUSALS if self.refusals[kind]},
            "calls": self.count.calls,
            "cached_calls": self.count.cached_calls,
            **dataclasses.asdict(self.count.usage),
        }


class _NoAnswer(Exception):
    """Ends the questions about one task: the endpoint gave no answer, and why."""

    def __init__(self, error: ResiliSimError) -> None:
        super().__init__(str(error))
        self.error = error


class TaskEnhancer:
    """Enhances tasks one by one; several may be under way at once in one event loop.

    Questions are written and answers checked in one thread of its own: checking embeds texts, and a loop that waits for
    that would take answers for late.
    """

    def __init__(self, mode: EnhancementMode, model: ChatModel, options: EnhancementOptions | None = None) -> None:
        self._mode = mode
        self._model = model
        self._options = EnhancementOptions() if options is None else options
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="enhancement")

    async def enhance(self, task: Task) -> Enhancement:
        """Enhance a task; an InvalidInputError says that the endpoint would refuse every other request, too."""
        made_by = {"mode": self._mode.name, "model": self._model.name, "made_from": task.instance_id}
        messages = await self._in_thread(self._mode.ask, task)
        count = CallCount()

        async def ask(messages: tuple[ChatMessage, ...]) -> ChatReply:
            nonlocal count
            try:
                reply = await self._model.complete(self._options.request(messages))
            except (RequestRefusedError, InfrastructureError) as error:
                if isinstance(error, RequestRefusedError) and error.concerns_all_requests:
                    raise
                raise _NoAnswer(error) from error
            count = count + (CallCount(0, 1) if reply.from_cache else CallCount(1, 0, reply.usage))
            return reply

        async def read(answer: str) -> Task:
            return await self._in_thread(self._mode.read, task, answer)

        try:
            result = await ask_until_usable(ask, messages, read, self._options.re_asks)
        except _NoAnswer as no_answer:
            status = getattr(no_answer.error, "status", None)
            detail = "no answer" if status is None else f"status {status}"  # nothing is said about the task
            return _told("failed", task, made_by, count, reason="endpoint", detail=detail, error=no_answer.error)
        if isinstance(result, Task):
            return _told("enhanced", task, made_by, count, task=result)
        return refused(task, result, made_by, count)

    async def aclose(self) -> None:
        """Let go of the model's connections and of the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._model.aclose()

    async def _in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def enhance_tasks(
    tasks: Iterable[Task],
    enhancer: TaskEnhancer,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    give_up_after: int = DEFAULT_GIVE_UP_AFTER,
    taken_ids: Iterable[str] = (),
) -> Generator[Enhancement, None, None]:
    """Enhance tasks and yield what became of them, in their order; runs an event loop of its own.

    A task whose call failed is held back until another one is answered: only then is it known that the endpoint works
    and that the original is all that can be had. If it fails for `give_up_after` tasks in a row, nothing that was held
    back is yielded, so that a later run can do better; fewer tasks than that are yielded as they were.

    Args:
        tasks: Read as they are needed.
        enhancer: It is closed at the end.
        concurrency: Tasks under way at once, 1 or more.
        give_up_after: Failures in a row that mean that the endpoint is down; 0 never gives up and keeps originals.
        taken_ids: Ids that no designed task may have.

    Raises:
        InvalidInputError: An argument is out of range, or the endpoint refuses key, model or address.
        InfrastructureError: The endpoint is down.
    """
    concurrency = checked(Count, "concurrency", concurrency)
    give_up_after = checked(CountOrNone, "give_up_after", give_up_after)
    stream = in_order(enhancer.enhance, tasks, concurrency, WINDOW_PER_SLOT * concurrency)
    results = driven(stream, enhancer.aclose)
    try:
        yield from without_duplicates(holding_failures_back(results, give_up_after), set(taken_ids))
    finally:
        results.close()


async def in_order(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], concurrency: int, window: int
) -> AsyncGenerator[R, None]:
    """Do work on items, `concurrency` at once, and yield results in their order; `window` bounds what is kept."""
    slots = asyncio.Semaphore(concurrency)

    async def one(item: T) -> R:
        async with slots:
            return await work(item)

    begun: deque[asyncio.Task[R]] = deque()
    try:
        for item in items:
            begun.append(asyncio.create_task(one(item)))
            if len(begun) >= window:
                yield await begun[0]
                begun.popleft()
        while begun:
            yield await begun[0]
            begun.popleft()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


def driven(stream: AsyncGenerator[R, None], close: Callable[[], Awaitable[None]]) -> Generator[R, None, None]:
    """Yield what an asynchronous stream yields, in an event loop of its own; at any end `close` is awaited."""

    async def following() -> R | None:
        return await anext(stream, None)

    async def ended() -> None:
        try:
            await stream.aclose()
        finally:
            await close()

    with asyncio.Runner() as runner:
        try:
            while (item := runner.run(following())) is not None:
                yield item
        finally:
            runner.run(ended())


def holding_failures_back(enhancements: Iterable[Enhancement], give_up_after: int) -> Iterator[Enhancement]:
    """Yield enhancements in order, failed ones after one that did not fail; raise after so many in a row."""
    held_back: list[Enhancement] = []
    for enhancement in enhancements:
        if enhancement.outcome == "failed" and give_up_after:
            held_back.append(enhancement)
            if len(held_back) == give_up_after:
                raise _down(enhancement, len(held_back))
            continue
        yield from held_back
        held_back.clear()
        yield enhancement
    yield from held_back


def without_duplicates(enhancements: Iterable[Enhancement], taken_ids: set[str]) -> Iterator[Enhancement]:
    """Yield enhancements; one whose task was there before is refused, since ids in a file must differ."""
    for enhancement in enhancements:
        task, result = enhancement.task, enhancement
        if task.instance_id in taken_ids and enhancement.outcome == "enhanced":
            refusal = Refusal("duplicate", f"{task.instance_id} was designed before")
            result = refused(enhancement.original, refusal, task.metadata["enhancement"], enhancement.count)
        taken_ids.add(result.task.instance_id)
        yield result


def _down(last: Enhancement, failures: int) -> ResiliSimError:
    """Return the error that ends a run: the endpoint's own, and what it means for the run."""
    tasks = "1 task" if failures == 1 else f"{failures} tasks in a row"
    text = f"{last.error}; stopped after {tasks}, what was finished is kept and the same command resumes it"
    return InvalidInputError(text) if isinstance(last.error, InvalidInputError) else InfrastructureError(text)


@dataclass(frozen=True, slots=True)
class CallForecast:
    """What would be asked.

    Attributes:
        questions: Tasks to be enhanced, or tools.
        cached: First questions whose answers are in the cache.
        calls: Calls if each first answer can be used.
        most_calls: Calls if each answer but the last is sent back.
        prompt_tokens_estimate: Prompt tokens of `calls`, by the rule of `resilisim.chat.types`.
        most_prompt_tokens_estimate: Prompt tokens of `most_calls`, by the same rule.
        most_completion_tokens: Largest number of tokens that the answers of `calls` can have.
        most_completion_tokens_with_re_asks: The same of `most_calls`.
    """

    questions: int
    cached: int
    calls: int
    most_calls: int
    prompt_tokens_estimate: int
    most_prompt_tokens_estimate: int
    most_completion_tokens: int
    most_completion_tokens_with_re_asks: int

    def to_mapping(self) -> dict[str, Any]:
        """Return the forecast as JSON values."""
        return dataclasses.asdict(self)


def forecast_calls(
    questions: Iterable[tuple[ChatMessage, ...]],
    options: EnhancementOptions,
    is_cached: Callable[[ChatRequest], bool] = lambda request: False,
) -> CallForecast:
    """Count what a run would ask that begins with these questions; nothing is asked."""
    first, again = [], []
    # About how many tokens a refused answer and the longest reason add to a prompt.
    frame = estimated_prompt_tokens(ChatRequest(correction("", "x" * MAX_DETAIL_LENGTH)))
    more = frame + min(options.max_tokens, LONGEST_REPEATED_ANSWER)
    for messages in questions:
        request = options.request(messages)
        tokens = estimated_prompt_tokens(request)
        first.append(0 if is_cached(request) else tokens)
        again += [tokens + number * more for number in range(1, 1 + options.re_asks)]
    calls = sum(tokens > 0 for tokens in first)
    most_calls = calls + len(again)
    return CallForecast(
        questions=len(first),
        cached=len(first) - calls,
        calls=calls,
        most_calls=most_calls,
        prompt_tokens_estimate=sum(first),
        most_prompt_tokens_estimate=sum(first) + sum(again),
        most_completion_tokens=calls * options.max_tokens,
        most_completion_tokens_with_re_asks=most_calls * options.max_tokens,
    )


class EnhancedTasksFile(Closing):
    """A file of enhanced tasks, open for writing by one process.

    Args:
        path: The file; its manifest gets the same name with `.manifest.json` behind it.
        arguments: Everything that decides what is written, as JSON values.
        tasks: The tasks that are enhanced, all of them.
        on_written: Called with the metadata of each task that an earlier run has written.

    Attributes:
        num_written: Tasks in the file.
        ids: Their ids.

    Raises:
        StoreError: The file holds something else, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        arguments: Mapping[str, Any],
        tasks: Sequence[Task],
        on_written: Callable[[Mapping[str, Any]], None] = lambda metadata: None,
    ) -> None:
        self.path = path
        self.num_written = 0
        self.ids: set[str] = set()
        if not _holds_this_run(path, arguments, tasks):
            write_manifest(manifest_of(path), run_manifest(_all_arguments(arguments, tasks)))
        self._is_new = not path.exists()
        self._writer = JsonLinesWriter(path)
        self._writer.resume(lambda line: self._take(line, tasks, on_written))

    def write(self, task: Task) -> None:
        """Append a task.

        Raises:
            StoreError: It does not fit; the file still ends with a whole line.
        """
        self._writer.write_encoded(encode_json(task.to_mapping(), sort_keys=True, separators=(",", ":")) + b"\n")
        self.num_written += 1

    def close(self) -> None:
        """Hand everything to the disk and release the file."""
        self._writer.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file; if an error came before the first task was written, leave nothing behind."""
        self.close()
        if error is not None and self._is_new and self.num_written == 0:
            self.path.unlink(missing_ok=True)
            manifest_of(self.path).unlink(missing_ok=True)

    def _take(self, line: object, tasks: Sequence[Task], on_written: Callable[[Mapping[str, Any]], None]) -> None:
        """Count a line of an earlier run; it has to belong to the task of its place."""
        expected = tasks[self.num_written].instance_id if self.num_written < len(tasks) else None
        match line:
            case {
                "instance_id": str(name),
                "metadata": {"enhancement": {"made_from": str(made_from), "outcome": str()}} as metadata,
            } if made_from == expected:
                self.num_written += 1
                self.ids.add(name)
                on_written(metadata)
            case _:
                number = self.num_written + 1
                raise StoreError(f"line {number} of {self.path} is not the task that belongs there: use another --out")


def num_finished(path: Path, arguments: Mapping[str, Any], tasks: Sequence[Task]) -> int:
    """Return how many tasks an earlier run of the same arguments has written to a file; nothing is changed."""
    return sum(1 for _ in read_json_lines(path)) if _holds_this_run(path, arguments, tasks) else 0


def manifest_of(path: Path) -> Path:
    """Return the path of a file's manifest."""
    return path.with_name(path.name + ".manifest.json")


def _all_arguments(arguments: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the arguments with the hash of the content of the tasks, in their order."""
    return {**arguments, "tasks": content_hash([content_hash(task.to_mapping()) for task in tasks])}


def _holds_this_run(path: Path, arguments: Mapping[str, Any], tasks: Sequence[Task]) -> bool:
    """Tell whether a file holds lines of this run; it may not exist or be empty, but not hold anything else."""
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no regular file: use another --out")
    if not path.exists() or not path.stat().st_size:
        return False
    manifest = run_manifest(_all_arguments(arguments, tasks))
    claim(manifest_of(path), manifest, path, found="lines", holds="tasks of another run", advice="use another --out")
    return True
