"""Scoring and attributing saved episodes again, as a check of a run's folder or into a new one, from records alone.

The states are rebuilt from what the steps say happened (which tool ran, whether it succeeded), by the simulator's own
transition. The exact optimum then gives values, regret, luck and labels anew. Whether an execution succeeded is looked
up in the luck as well, which is a function of salt, seed, task, tool and attempt: a record that contradicts it is none.

Of an agent that began anew in fresh episodes the record holds the steps of the last one, which is what is scored.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from resilisim.envs.conversation import reference_of
from resilisim.envs.feedback import output_in
from resilisim.envs.protocol import NATIVE_FUNCTIONS, WAIT_FUNCTION, decode_native, read_native, read_text
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.attribution import IDENTITY_TOLERANCE, Attribution
from resilisim.evaluation.episode.record import EpisodeRecord, ScoreRecord, StepRecord, differences
from resilisim.evaluation.episode.texts import opened, replies_of, spoken_texts
from resilisim.evaluation.run.plan import library_of_run
from resilisim.evaluation.run.store import EPISODES_NAME, RunStore, episode_lines, read_manifest, record_in_line
from resilisim.processes import answers_in_order
from resilisim.provenance import encode_json_line
from resilisim.run_folder import MANIFEST_NAME
from resilisim.seeding import PURPOSE_SUCCESS, episode_key
from resilisim.simulator import (
    BenchmarkLaw,
    EndRules,
    Episode,
    EpisodeState,
    Law,
    Message,
    Problem,
    build_problem,
    next_state,
    rescore,
    start_state,
    success_probability,
)
from resilisim.simulator.compiled import draw_bits, tool_luck_key
from resilisim.simulator.law import success_threshold
from resilisim.simulator.messages import MessageKind
from resilisim.simulator.scoring import graded_score
from resilisim.simulator.state import is_awaiting_closing
from resilisim.tasks.searches import Searches
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.worlds.base import DoneCall, Grade, ToolError, graded, load_world, world_task

# What came of scoring an episode again.
Verdict = Literal["agreeing", "other_labels", "differing", "impossible"]

ReadMessage = Callable[[str], Message]


def message_reader(library: ToolLibrary, environment: Mapping[str, Any]) -> ReadMessage:
    """Return what turns the text of a recorded message into its meaning, under the options of a run's environment."""
    mode = environment.get("parameters", "lenient")
    answers = environment.get("world") is not None
    offers_wait = "law" in environment and Law.from_mapping(environment["law"]).waiting_can_help
    if environment.get("protocol") == "native":
        offered = (*NATIVE_FUNCTIONS, WAIT_FUNCTION) if offers_wait else NATIVE_FUNCTIONS
        return lambda text: read_native(decode_native(text), library, mode, offered, answers)
    return lambda text: read_text(text, library, mode, answers, offers_wait)


def reattribute(record: EpisodeRecord, library: ToolLibrary, read: ReadMessage | None = None) -> EpisodeRecord:
    """Return a record with everything computed again that follows from what happened.

    These are the score, how the episode ended, and all values, regrets, lucks, labels and their sums. The record that
    is handed in is left as it is. Messages are read as under the text protocol if `read` is omitted.

    Raises:
        InvalidInputError: The record contradicts itself, the law or its luck, or does not fit the library.
        ExactLimitError: The task is too large to be solved exactly.
    """
    told = _WorldOf(record) if "world" in record else None
    problem = build_problem(library, record["required_tools"], *_law_and_rules(record), told is not None)
    reference = None if told is None else reference_of(problem, told.task)
    attribution = Attribution(problem, record["planner"], record["flaw"], reference)
    read = read or message_reader(library, {"world": record.get("world")})
    past = _Past(problem, record)
    grade = None if told is None else told.grade(read)
    right = grade is not None and grade["correct"] and record["ended_by"] in ("completion", "stopped")
    steps: list[StepRecord] = []
    for recorded in record["steps"]:
        message = _message_of(recorded, read, told is not None, problem.dynamics.has_sections)
        before = past.state
        attempt, probability = past.add(recorded, message)
        refused = recorded.get("real", False)
        worth = attribution.judge(before, message, past.state, int(right), refused)
        steps.append({**recorded, "attempt": attempt, "success_probability": probability, **worth})
    if past.state.ended_by is None:
        raise InvalidInputError(f"the episode does not end with its last message, number {len(steps)}")
    # Taken as it stands: records do not hold what was searched.
    searches = Searches(record.get("searches_needed"), record.get("no_search_ceiling"))
    again: EpisodeRecord = {
        **record,
        **attribution.totals(steps, searches),
        "steps": steps,
        "required_outputs": sorted(library.outputs.intersection(record["required_tools"])),
        "ended_by": past.state.ended_by,
    }
    score = rescore(dict(again))
    again["score"] = cast("ScoreRecord", score.to_mapping() if grade is None else graded_score(score, Grade(**grade)))
    again["outcome"] = int(again["score"]["level"] == "full_success")
    for name in again.keys() - record.keys():  # what older records lack
        del cast("dict[str, Any]", again)[name]
    return again


class _WorldOf:
    """The world of a recorded episode, which grades it again from what the record holds."""

    def __init__(self, record: EpisodeRecord) -> None:
        self._world = load_world(record["world"])
        self._record = record
        self.task = world_task(self._world, record["instance_id"])

    def grade(self, read: ReadMessage) -> Mapping[str, Any]:
        """Return the grade: computed again where the replies were kept, else as it stands."""
        record = opened(self._record)
        spoken = spoken_texts(record)
        if spoken is None:
            return cast("Mapping[str, Any]", self._record["score"]["grade"])
        calls = []
        for step, reply in zip(record["steps"], replies_of(record), strict=True):
            if step["success"] is not None:
                tool, output = step["tool"] or "", output_in(reply or "") if step["success"] else None
                injected = not step["success"] and not step.get("real", False)
                calls.append(DoneCall(tool, read(step["message"]).parameters, output, step["error"], injected))
        return graded(self._world, self.task, record.get("answer"), calls).to_mapping()


class _Recorded:
    """What the tools of a world did in a recorded episode, call by call: they worked, or really failed."""

    def __init__(self, record: EpisodeRecord) -> None:
        self._failures = [step["error"] for step in record["steps"] if step["success"] or step.get("real", False)]

    def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return nothing, or fail as the tool did."""
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise ToolError(failure, "as recorded")
        return {}

    def close(self) -> None:
        """Hold nothing."""


class _Past:
    """The states of a recorded episode, one after the other."""

    def __init__(self, problem: Problem, record: EpisodeRecord) -> None:
        self.state: EpisodeState = start_state(problem)
        self._problem = problem
        self._salt = record["salt"]  # where none is recorded, outcomes are taken as they stand
        self._key = episode_key(self._salt, record["seed"], record["instance_id"])
        self._tool_keys: dict[str, tuple[int, int]] = {}
        self._episode: Episode | None = None
        if problem.dynamics.has_sections:
            if not self._salt:
                raise InvalidInputError("it does not name the salt of its draws, which a law with parts is played by")
            workspace = _Recorded(record) if problem.arguments_matter else None
            told = (record["instance_id"], record["seed"], self._salt)
            self._episode = Episode(problem, *told, workspace=workspace)
            self.state = self._episode.state

    def add(self, step: StepRecord, message: Message) -> tuple[int | None, float | None]:
        """Go one message further; return attempt and success probability if it was an execution.

        Raises:
            InvalidInputError: It cannot have happened.
        """
        if self.state.ended_by is not None:
            raise InvalidInputError(f"message {step['turn']} comes after the end of the episode")
        executes = message.kind == "execute" and not is_awaiting_closing(self._problem, self.state)
        if executes != (step["success"] is not None):
            told = "executes a tool" if executes else "executes nothing"
            raise InvalidInputError(f"message {step['turn']} {told}, but its success is {step['success']}")
        if self._episode is not None:
            return self._replayed(self._episode, step, message)
        found = self._execution(step, message.tool or "") if executes else (None, None)
        self.state = next_state(self._problem, self.state, message, bool(step["success"]))
        return found

    def _replayed(self, episode: Episode, step: StepRecord, message: Message) -> tuple[int | None, float | None]:
        """Let a message happen again, under a law with parts."""
        event = episode.apply(message)
        self.state = episode.state
        told, recorded = (event.success, event.result), (step["success"], step.get("result"))
        if told != recorded:
            raise InvalidInputError(
                f"the draw of message {step['turn']} ({event.tool}) is {event.result!r}, the record says "
                f"{step.get('result')!r:.60}"
            )
        return event.attempt, event.success_probability

    def _execution(self, step: StepRecord, name: str) -> tuple[int, float]:
        problem, state = self._problem, self.state
        tool = problem.library.index(name)
        done = state.executions[tool]
        if self._salt:
            if name not in self._tool_keys:
                self._tool_keys[name] = tool_luck_key(*self._key, name)
            bits = draw_bits(*self._tool_keys[name], done, PURPOSE_SUCCESS)
            succeeds = bits < success_threshold(success_probability(problem, state, tool))
            if succeeds != (step["success"] or step.get("real", False)):
                told = "success" if succeeds else "failure"
                raise InvalidInputError(
                    f"the draw of message {step['turn']} ({name}) is a {told}, the record denies it"
                )
        return done + 1, success_probability(problem, state, tool)


def _law_and_rules(record: EpisodeRecord) -> tuple[BenchmarkLaw | Law, EndRules]:
    law = record["law"]
    try:
        return Law.from_mapping(law) if "hash" in law else BenchmarkLaw(**law), EndRules(**record["rules"])
    except TypeError as error:
        raise InvalidInputError(f"law or end rules of the record are not known: {error}") from error


def _message_of(step: StepRecord, read: ReadMessage, in_world: bool = False, has_parts: bool = False) -> Message:
    """Return the message of a step; its kind is that of the record, which knows how the run read it.

    What executes nothing is read again, as whether it repeats another message depends on its words. In worlds, and
    under laws with parts, that depends on parameters, too, and in worlds what finishes gives an answer.
    """
    kind = cast("MessageKind", step["kind"])
    if in_world and kind in ("execute", "finish"):
        message = read(step["message"])
        if (message.kind, message.tool) != (kind, step["tool"]):
            raise InvalidInputError(f"message {step['turn']} is no {kind} of {step['tool']} any more")
        return message
    if kind == "execute":
        again = read(step["message"]) if has_parts else Message(kind, tool=step["tool"])
        return again if again.tool == step["tool"] else Message(kind, tool=step["tool"])
    if kind in ("finish", "stop", "wait", "agent_error"):
        return Message(kind)
    if kind not in ("search", "info", "format_error", "rejected"):
        raise InvalidInputError(f"message {step['turn']} is of the unknown kind {kind!r:.60}")
    message = read(step["message"])
    if message.kind == kind and (kind == "search" or message.tool == step["tool"]):
        return message
    return Message(kind, tool=step["tool"], query=step["message"], text=step["message"])


def compare_records(record: EpisodeRecord, again: EpisodeRecord) -> tuple[Verdict, str | None]:
    """Say whether a record agrees with what was computed from it, and where they differ first.

    Numbers agree if they are within `IDENTITY_TOLERANCE` of each other. Other reasons of losses than today's are told
    apart from other numbers: what a loss is called may change with a new version.
    """
    if record == again:  # by far the most, and the same to the last bit
        return "agreeing", None
    found = [one for one in differences(record, again) if not _is_near(*one)]
    numbers = [one for one in found if not _is_reason(one[0])]
    if not found:
        return "agreeing", None
    where, then, now = (numbers or found)[0]
    difference = f"{where} is {then!r:.80} in the record and {now!r:.80} computed again"
    return ("differing" if numbers else "other_labels"), difference


def _is_near(where: str, then: Any, now: Any) -> bool:
    if _is_reason(where):  # a label that is not there has cost nothing
        then, now = then or 0.0, now or 0.0
    return isinstance(then, float) and isinstance(now, float) and abs(then - now) <= IDENTITY_TOLERANCE


def _is_reason(where: str) -> bool:
    return where.startswith("losses") or where.endswith("].label")


LINES_PER_JOB: Final = 200
NUM_SHOWN: Final = 20  # differences that are told one by one
# What stands in the manifest of a folder that was made from another one.
SOURCE_KEY: Final = "rescored_from"


@dataclass(frozen=True, slots=True)
class RescoreSummary:
    """What came out when a run's episodes were scored again.

    Attributes:
        num_agreeing: Episodes that agree in everything, numbers to 1e-9.
        num_other_labels: Those whose numbers agree and whose reasons for losses are others now.
        num_differing: Those whose score or numbers are others.
        num_impossible: Those that contradict themselves, the law or their luck, so that nothing can be computed.
        differences: The first differences, one line each, at most `NUM_SHOWN`.
        directory: Where the new folder is, None if none was asked for.
    """

    num_episodes: int
    num_agreeing: int
    num_other_labels: int
    num_differing: int
    num_impossible: int
    differences: tuple[str, ...]
    directory: Path | None

    @property
    def agrees(self) -> bool:
        """Whether every episode agrees in everything."""
        return self.num_agreeing == self.num_episodes

    def to_mapping(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        counts = {name: getattr(self, name) for name in self.__slots__ if name.startswith("num_")}
        directory = None if self.directory is None else str(self.directory)
        return {**counts, "agrees": self.agrees, "differences": list(self.differences), "directory": directory}


def rescore_run(
    directory: Path | str,
    out: Path | str | None = None,
    *,
    library: ToolLibrary | None = None,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> RescoreSummary:
    """Score and attribute all episodes of a run again, from their records alone.

    Args:
        directory: The run's folder; it is only read.
        out: Folder for the records with what was computed again. Its manifest says from which run it was made, so the
            command that made the run does not go on in it.
        library: The run's tool library; the default one if omitted.
        workers: Number of processes.
        progress: Called with the number of episodes done since the last call.

    Raises:
        InvalidInputError: The library is not the run's; with `out`, an episode cannot be scored again.
        StoreError: A folder cannot be read or written, or holds what it must not.
        ExactLimitError: A task is too large to be solved exactly.
    """
    source, manifest = Path(directory), read_manifest(directory)
    library = library_of_run(manifest["arguments"], library, directory)
    store = None if out is None else _new_store(source, Path(out), manifest)
    setup = _Setup(
        source / EPISODES_NAME,
        None if library == default_library() else library.to_json(),
        dict(manifest["arguments"].get("environment", {})),
        manifest["hash"],
        None if store is None else store.manifest["hash"],
    )
    counts: Counter[Verdict] = Counter()
    differences: list[str] = []
    with contextlib.nullcontext() if store is None else store:
        for answers in answers_in_order(_Rescorer, setup, batches(episode_lines(source)), workers):
            counts.update(answer.verdict for answer in answers)
            told = [f"episode {answer.index}: {answer.difference}" for answer in answers if answer.difference]
            differences += told[: NUM_SHOWN - len(differences)]
            if store is not None:
                _write(store, answers, source)
            if progress is not None:
                progress(len(answers))
    return RescoreSummary(
        num_episodes=counts.total(),
        num_agreeing=counts["agreeing"],
        num_other_labels=counts["other_labels"],
        num_differing=counts["differing"],
        num_impossible=counts["impossible"],
        differences=tuple(differences),
        directory=None if store is None else store.directory,
    )


@dataclass(frozen=True, slots=True)
class _Setup:
    """What travels to each process."""

    path: Path  # of the episodes to read
    library: str | None  # as JSON; None is the default one
    environment: dict[str, Any]
    source_hash: str  # of the manifest of the folder to read
    manifest_hash: str | None  # of the folder to write; None writes none


@dataclass(frozen=True, slots=True)
class _Answer:
    index: int
    verdict: Verdict
    difference: str | None
    line: bytes | None


class _Rescorer:
    """Scores batches of recorded episodes again; made once in each process."""

    def __init__(self, setup: _Setup) -> None:
        self._setup = setup
        text = setup.library
        self._library = default_library() if text is None else ToolLibrary.of_text(text)
        self._read = message_reader(self._library, setup.environment)

    def __call__(self, job: tuple[int, Sequence[tuple[int, bytes]]]) -> Iterator[tuple[int, list[_Answer]]]:
        number, lines = job
        yield number, [self._answer(place, line) for place, line in lines]

    def _answer(self, place: int, line: bytes) -> _Answer:
        path = self._setup.path
        record = record_in_line(line, place, path)
        try:
            check_origin(record, self._setup.source_hash, self._setup.environment)
            again = reattribute(record, self._library, self._read)
        except InvalidInputError as error:
            return _Answer(record["index"], "impossible", str(error), None)
        verdict, difference = compare_records(record, again)
        written = None
        if self._setup.manifest_hash is not None:
            again["manifest"] = self._setup.manifest_hash
            written = encode_json_line(again)
        return _Answer(record["index"], verdict, difference, written)


def check_origin(record: EpisodeRecord, manifest_hash: str, environment: Mapping[str, Any]) -> None:
    """Refuse an episode of another run, or one that was played under other constants than its run."""
    if record["manifest"] != manifest_hash:
        raise InvalidInputError(f"it belongs to another run than {MANIFEST_NAME} describes")
    unsaid = {"search": "semantic", "errors": "documented"}
    law = {"law": record["law"]} if "hash" in record["law"] else record["law"]
    told = {**law, **record["rules"], "salt": record["salt"]}
    told |= {name: record.get(name, usual) for name, usual in unsaid.items()}
    environment = {**unsaid, **environment}
    for name, value in told.items():
        expected = environment.get(name, value)
        if expected != value:
            raise InvalidInputError(f"{name} is {value!r:.60} in the record and {expected!r:.60} in the manifest")


def _new_store(source: Path, out: Path, manifest: Mapping[str, Any]) -> RunStore:
    if out.resolve() == source.resolve():
        raise StoreError(f"{out} is the folder to read: name another one to write to")
    arguments = dict(manifest["arguments"])
    arguments[SOURCE_KEY] = {name: manifest.get(name) for name in ("hash", "created", "versions")}
    num_episodes = arguments.get("num_episodes")
    if not isinstance(num_episodes, int):
        raise StoreError(f"the manifest of {source} does not say how many episodes its run has")
    return RunStore(out, arguments, num_episodes)


def batches(lines: Iterator[tuple[int, bytes]], size: int = LINES_PER_JOB) -> Iterator[list[tuple[int, bytes]]]:
    """Yield lines of episodes, each with its number, as jobs for processes."""
    while batch := list(itertools.islice(lines, size)):
        yield batch


def _write(store: RunStore, answers: Sequence[_Answer], source: Path) -> None:
    for answer in answers:
        if store.is_finished(answer.index):
            continue
        if answer.line is None:
            raise InvalidInputError(
                f"episode {answer.index} of {source} cannot be scored again, so the new folder ends before it: "
                f"{answer.difference}"
            )
        store.append_encoded(answer.line, answer.index)
