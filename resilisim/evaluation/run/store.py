"""The folder of a run: its manifest, finished episodes (episodes.jsonl), failures, replies of episodes under way.

The same command on the same folder goes on where it stopped. Anything else is refused, naming the first difference, so
that results of different laws, luck, tasks or benchmark versions can never stand in one file.
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from resilisim.chat import ChatReply, ChatRequest
from resilisim.chat.middleware import request_key
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import (
    EpisodeRecord,
    FailureRecord,
    checked_record,
    failure_record,
    is_branch,
    is_failure,
)
from resilisim.evaluation.run.chain import Chain, read_chain
from resilisim.inputs import validated
from resilisim.provenance import describe_os_error, encode_json_line
from resilisim.run_folder import (
    MANIFEST_NAME,
    JsonLinesWriter,
    RunFolder,
    load_manifest,
    own_file,
    parse_line,
    placed_lines,
    read_json_lines,
    whole_lines,
    write_file_atomically,
)

EPISODES_NAME = "episodes.jsonl"
FAILURES_NAME = "failures.jsonl"
ROWS_NAME = "explored.jsonl"  # of a run that was explored: a line for each exploration that is finished
BEGUN = "begun"  # the reason of an episode that was handed out
_MOST_BITS = 1 << 26  # of the indices that were met; a set holds larger ones
_INDEX = re.compile(rb'\{"schema":"[a-z0-9-]+","index":([0-9]{1,18}),')


def _last_line(directory: Path) -> tuple[int, bytes]:
    """Return how many lines of failures a folder has, and the last."""
    path, count, last = own_file(directory, FAILURES_NAME), 0, b""
    for number, line in whole_lines(path) if path.exists() else ():
        count, last = number, line
    return count, last


class RunStore(RunFolder):
    """A run's folder (`RunFolder`), open for writing by one process.

    Args:
        directory: The folder; it is made if needed.
        arguments: Everything that decides what the episodes are (JSON values).
        num_episodes: Number of episodes of the whole run; their indices are 0 to num_episodes - 1.
        on_record: Called with every record that an earlier run left, while the folder is opened.

    Raises:
        StoreError: The folder holds another run's results, a broken file, or cannot be written.
    """

    def __init__(
        self,
        directory: Path | str,
        arguments: Mapping[str, Any],
        num_episodes: int,
        on_record: Callable[[EpisodeRecord], None] | None = None,
    ) -> None:
        super().__init__(directory, arguments, EPISODES_NAME, check=check_episode)
        self.num_episodes = num_episodes
        self.finished = bytearray((num_episodes + 7) // 8)  # (num_episodes bits) which are in the file
        self.num_finished = 0
        self._failures: JsonLinesWriter | None = None
        self._chain = Chain(self.directory, self.manifest["hash"])
        try:
            count, last = 0, b""
            for number, line in episode_lines(self.directory):
                count, last = number, line
                record = record_in_line(line, number, self.directory / EPISODES_NAME)
                self._check(record)
                self._mark(record["index"])
                if on_record is not None:
                    on_record(record)
            self._chain.begin({"episodes": (count, last), "failures": _last_line(self.directory)})
        except BaseException:
            self.close()
            raise

    def is_finished(self, index: int) -> bool:
        """Return whether an episode is in the file."""
        return bool(self.finished[index >> 3] & (1 << (index & 7)))

    def append_encoded(self, line: bytes, index: int, *, is_new: bool = True) -> None:
        """Append the record of episode `index`, encoded as one JSON line; it must not be there.

        One that is not new stands in the chain of the folder that it comes from (`take_over`).
        """
        if self.is_finished(index):
            raise StoreError(f"episode {index} is already in {self.directory / EPISODES_NAME}")
        written = self.lines.write_encoded(line)
        self._mark(index)
        if is_new:
            self._chain.add("episodes", written)

    def append_failure(self, line: bytes, *, is_new: bool = True) -> None:
        """Append what kept an episode from its end, encoded as one JSON line; the episode stays unfinished."""
        if self._failures is None:
            self._failures = JsonLinesWriter(own_file(self.directory, FAILURES_NAME), check_failure)
        written = self._failures.write_encoded(line)
        if is_new:
            self._chain.add("failures", written)

    def begin(self, failure: FailureRecord) -> None:
        """Write down that an episode is handed out (`begun`), before its first reply goes out.

        One that is never finished counts as lost: whoever handed it out cannot know what was done with the draws.
        """
        self.append_failure(encode_json_line(failure))

    def begun(self) -> set[int]:
        """Return the episodes that were handed out (`begin`) and never finished."""
        failures = read_failures(self.directory)
        return {each["index"] for each in failures if each["reason"] == BEGUN and not self.is_finished(each["index"])}

    def sent_before(self) -> dict[int, tuple[str | None, ...]]:
        """Return the longest messages of each unfinished episode that broke for reasons nobody can tell."""
        sent: dict[int, tuple[str | None, ...]] = {}
        for failure in read_failures(self.directory):
            index, messages = failure["index"], tuple(failure.get("messages", ()))
            if messages and not self.is_finished(index):
                sent[index] = messages if len(messages) > len(sent.get(index, ())) else sent[index]
        return sent

    def close(self) -> None:
        """Hand everything to the disk and release the folder."""
        super().close()
        if self._failures is not None:
            self._failures.close()
        self._chain.close()

    def take_over(self, directory: Path | str) -> None:
        """Take over the chain of another folder of the same run, whose lines are here now."""
        there = {(link["sitting"], link["number"]) for link in read_chain(self.directory)}
        for link in read_chain(directory):
            if (link["sitting"], link["number"]) not in there:
                self._chain.copy(link)

    def _mark(self, index: int) -> None:
        self.finished[index >> 3] |= 1 << (index & 7)
        self.num_finished += 1

    def _check(self, record: EpisodeRecord) -> None:
        place = self.directory / EPISODES_NAME
        index = record["index"]
        if record["manifest"] != self.manifest["hash"]:
            raise foreign_episode(self.directory, index)
        if not 0 <= index < self.num_episodes:
            raise StoreError(f"episode {index} in {place} is outside this run of {self.num_episodes} episodes")
        if self.is_finished(index):
            raise StoreError(f"episode {index} stands twice in {place}")


def read_manifest(directory: Path | str) -> dict[str, Any]:
    """Return the manifest of a run's folder: its arguments, their hash, the versions and the machine it ran on.

    Raises:
        StoreError: There is none, or it cannot be read, or its hash does not fit its arguments.

    Example:
        >>> from resilisim import evaluate
        >>> from resilisim.evaluation import read_manifest
        >>> result = evaluate("plan-follower", tasks=3, seeds=2)
        >>> arguments = read_manifest(result.directory)["arguments"]
        >>> arguments["policies"], arguments["seeds"], arguments["num_episodes"]
        (['plan-follower'], [0, 1], 6)
    """
    if Path(directory).is_file():
        raise StoreError(f"{directory} is a file: expected the folder of a run")
    manifest = load_manifest(own_file(directory, MANIFEST_NAME))
    if manifest is None:
        reason = f"it has no {MANIFEST_NAME}" if Path(directory).exists() else "it does not exist"
        raise StoreError(f"{directory} is not a folder of results: {reason}")
    return manifest


def num_planned(arguments: Mapping[str, Any], num_there: int) -> int:
    """Return how many episodes a run has when it is finished; of an agent that is explored, nobody knows that before.

    Args:
        arguments: Those of the run's manifest.
        num_there: How many there are, which is the answer where nothing else is known.
    """
    return num_there if arguments.get("explored") else int(arguments.get("num_episodes", num_there))


def refuse_explored(directory: Path | str, arguments: Mapping[str, Any], why: str) -> None:
    """Refuse a run that was explored where its branches, of unequal weight, would be taken for a sample.

    Args:
        directory: Its folder.
        arguments: Those of its manifest.
        why: What needs a sample, in a few words.

    Raises:
        InvalidInputError: It was explored.
    """
    if arguments.get("explored"):
        raise InvalidInputError(
            f"{directory} was explored, and its episodes are branches of unequal weight: {why}; expected a run of "
            "`resilisim evaluate`"
        )


def num_lines(directory: Path | str) -> int:
    """Return how many lines of episodes a folder has, for those who count along."""
    path = own_file(directory, EPISODES_NAME)
    if not path.exists():
        return 0
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


def read_records(directory: Path | str, places: dict[int, int] | None = None) -> Iterator[EpisodeRecord]:
    """Yield the finished episodes of a run's folder one by one, in the order in which they ended.

    Their texts are packed (`opened`).

    Args:
        directory: The folder.
        places: Takes where the line of each episode begins, by its index, to read some of them again (`record_at`).

    Raises:
        StoreError: It is not a folder of results, or the file cannot be read or holds a line that is not an episode of
            this
            schema.

    Example:
        >>> from resilisim import evaluate
        >>> from resilisim.evaluation import read_records
        >>> result = evaluate("plan-follower", tasks=3, seeds=2)
        >>> [(record["index"], record["seed"]) for record in read_records(result.directory)]
        [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 1)]
    """
    path = own_file(directory, EPISODES_NAME)
    if not path.exists():
        read_manifest(directory)  # a run that was stopped before its first episode has one; nothing else does
        return
    for number, line in episode_lines(directory, places):
        yield record_in_line(line, number, path)


def record_at(directory: Path | str, place: int) -> EpisodeRecord:
    """Return the episode whose line begins at a place (`read_records`).

    Raises:
        StoreError: The file has changed, or cannot be read.
    """
    path = own_file(directory, EPISODES_NAME)
    try:
        with path.open("rb") as stream:
            stream.seek(place)
            line = stream.readline()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    return record_in_line(line, 0, path)


def episode_lines(directory: Path | str, places: dict[int, int] | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a folder's episodes with their numbers, each episode once; a warning says which stood twice.

    `places` takes where each begins, in bytes.

    Raises:
        StoreError: The file cannot be read, or holds two lines of one episode that differ.
    """
    path = own_file(directory, EPISODES_NAME)
    seen, twice = _Indices(), []
    for number, begins, line in placed_lines(path) if path.exists() else ():
        index = _index_of(line)
        if index is None or seen.add(index):
            if places is not None and index is not None:
                places[index] = begins
            yield number, line
            continue
        _refuse_another(path, number, line, index)
        twice.append(index)
    if twice:
        count = "1 episode stands" if len(twice) == 1 else f"{len(twice):,} episodes stand"
        text = f"{count} twice in {path}, the first is episode {twice[0]}: each counts once"
        warnings.warn(text, UserWarning, stacklevel=2)


def _index_of(line: bytes) -> int | None:
    """Return the index of the record in a line; None if it has none, which whoever reads the line refuses."""
    match = _INDEX.match(line)  # records begin with it; a line that was edited may not
    if match is not None:
        return int(match[1])
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    index = record.get("index") if isinstance(record, dict) else None
    return index if type(index) is int else None


def _refuse_another(path: Path, number: int, line: bytes, index: int) -> None:
    """Refuse a line of an episode that stands there already, unless it says the same."""
    first = next((other, text) for other, text in whole_lines(path) if _index_of(text) == index)
    same = first[1] == line or parse_line(first[1], first[0], path) == parse_line(line, number, path)
    if not same:
        raise StoreError(
            f"lines {first[0]} and {number} of {path} are both episode {index}, and differ: it was played twice, or "
            "changed; take one of them out"
        )


class _Indices:
    """Which indices were met: bits, as runs have millions; a set for those that no plan has."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._rest: set[int] = set()

    def add(self, index: int) -> bool:
        """Note an index; return whether it is new."""
        if not 0 <= index < _MOST_BITS:
            is_new = index not in self._rest
            self._rest.add(index)
            return is_new
        place, bit = index >> 3, 1 << (index & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(place + 1 - len(self._bits)))
        is_new = not self._bits[place] & bit
        self._bits[place] |= bit
        return bool(is_new)


def record_in_line(line: bytes, number: int, path: Path) -> EpisodeRecord:
    """Return the record in a line of a file of episodes (`episode_lines`).

    Raises:
        StoreError: It holds none.
    """
    record = checked_record(parse_line(line, number, path), f"line {number} of {path}")
    if _index_of(line) != record["index"]:
        raise StoreError(f"line {number} of {path} names its index twice")
    return record


_UNREADABLE = "it cannot be written, for nothing could read it again"


def check_episode(line: bytes) -> None:
    """Refuse a line that is not an episode for whoever reads it (`record_in_line`), before it is written.

    Raises:
        StoreError: The text says which value it is.
    """
    try:
        record_in_line(line, 0, Path(EPISODES_NAME))
    except StoreError as error:
        raise StoreError(
            f"{_UNREADABLE}: {str(error).removeprefix(f'line 0 of {EPISODES_NAME}').lstrip(': ')}"
        ) from error


def check_failure(line: bytes) -> None:
    """Refuse a line that is no failure for whoever reads it (`read_failures`), before it is written."""
    value = parse_line(line, 0, Path(FAILURES_NAME))
    if not isinstance(value, Mapping) or not is_failure(value):
        raise StoreError(f"{_UNREADABLE}: it is no failure")
    validated(FailureRecord, value, _UNREADABLE, error=StoreError)


def read_own_records(
    directory: Path | str, manifest: Mapping[str, Any], line_places: dict[int, int] | None = None
) -> Iterator[EpisodeRecord]:
    """Yield the finished episodes of a folder with a manifest (`read_records`).

    Raises:
        StoreError: As `read_records`; or an episode is one of another run, stands at another place too, or has a weight
            though the run was not explored.
    """
    places, is_explored = _Places(manifest["arguments"]), bool(manifest["arguments"].get("explored", False))
    for record in read_records(directory, line_places):
        if record["manifest"] != manifest["hash"]:
            raise foreign_episode(Path(directory), record["index"])
        if is_branch(record) != is_explored:
            kind = "has no weight in a run that was explored" if is_explored else "has a weight in a run of samples"
            raise StoreError(f"episode {record['index']} in {Path(directory) / EPISODES_NAME} {kind}")
        problem = places.problem(record)
        if problem is not None:
            raise StoreError(f"episode {record['index']} in {Path(directory) / EPISODES_NAME} {problem}")
        yield record


class _Places:
    """Which task, policy, prompt type and seed stand at which place of a plan, so that no episode has two numbers."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        asked = [arguments.get(name) for name in ("policy_names", "prompts", "seeds")]
        # How many branches an agent has shows only when it is explored: their numbers are no places of a plan.
        is_planned = "tasks" in arguments and not arguments.get("explored", False)
        is_planned &= all(isinstance(each, list) and each for each in asked)
        self._sizes = [len(each) for each in asked if isinstance(each, list)] if is_planned else []
        self._names: dict[tuple[str, int], object] = {}
        self._of: dict[tuple[str, object], int] = {}

    def problem(self, record: EpisodeRecord) -> str | None:
        """Return what is wrong with the number of an episode, by all that were met before."""
        if not self._sizes:
            return None
        policies, prompts, seeds = self._sizes
        rest, seed = divmod(record["index"], seeds)
        rest, prompt = divmod(rest, prompts)
        task, policy = divmod(rest, policies)
        actual = {
            "task": (task, record["instance_id"]),
            "policy": (policy, record["policy"]),
            "prompt": (prompt, record["prompt_type"]),
            "seed": (seed, record["seed"]),
        }
        for what, (place, name) in actual.items():
            known, known_place = self._names.setdefault((what, place), name), self._of.setdefault((what, name), place)
            if known != name or known_place != place:
                return f"is at the place of another one: its {what} is {name!r:.80}, expected {known!r:.80}"
        return None


def read_failures(directory: Path | str) -> Iterator[FailureRecord]:
    """Yield the failures that a run's folder tells of, also those of episodes that were finished later."""
    path = own_file(directory, FAILURES_NAME)
    if path.exists():
        for number, value in enumerate(read_json_lines(path), start=1):
            if isinstance(value, Mapping) and is_failure(value):
                validated(FailureRecord, value, f"line {number} of {path}", error=StoreError)
                yield value


def begun(index: int, policy: str, prompt_type: str, instance_id: str, seed: int) -> FailureRecord:
    """Return the line that says of an episode that it was handed out (`RunStore.begin`)."""
    words = "it was handed out, and not finished"
    return failure_record(index, policy, prompt_type, instance_id, seed, error=words, reason=BEGUN, fault="unclear")


def foreign_episode(directory: Path, index: int) -> StoreError:
    """Return the refusal of an episode that belongs to another run than the folder's manifest describes."""
    return StoreError(
        f"episode {index} in {directory / EPISODES_NAME} belongs to another run than {MANIFEST_NAME} describes"
    )


JOURNALS_NAME = "unfinished"


class Journals(Protocol):
    """Where the replies of a run's episodes under way are kept, wherever the episodes are played."""

    def kept(self, index: int) -> bytes:
        """Return the lines that are kept of an episode."""
        ...

    def write(self, index: int, lines: bytes, anew: bool) -> None:
        """Append lines to those of an episode, or put them in their place (`anew`)."""
        ...


class JournalFolder:
    """The replies of a run's episodes under way in its folder: one file for each, which goes with its record.

    Replies that cannot be kept cost one warning, and other requests if episodes break; never an episode.
    """

    def __init__(self, directory: Path | str) -> None:
        self._folder = Path(directory) / JOURNALS_NAME
        self._writes = True

    def path(self, index: int) -> Path:
        """Return the file of an episode."""
        return self._folder / f"{index}.jsonl"

    def kept(self, index: int) -> bytes:
        """Return the lines that are kept of an episode; its last one may be torn."""
        try:
            return self.path(index).read_bytes()
        except OSError:
            return b""

    def write(self, index: int, lines: bytes, anew: bool) -> None:
        """Append lines to those of an episode, or put them in their place (`anew`)."""
        if not self._writes:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if anew:
                write_file_atomically(self.path(index), lines)
                return
            with self.path(index).open("ab") as file:  # a run of many episodes at once must not hold as many files
                file.write(lines)
        except (OSError, StoreError) as error:
            self._writes = False
            problem = describe_os_error(error) if isinstance(error, OSError) else error
            warnings.warn(f"replies cannot be kept in {self._folder}: {problem}", UserWarning, stacklevel=2)

    def discard(self, index: int) -> None:
        """Remove the replies of an episode whose record is written."""
        with contextlib.suppress(OSError):
            self.path(index).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder, unless it holds replies, or what somebody else has put there."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class EpisodeJournal:
    """The replies of one episode under way: what was paid for is not asked for again after a kill or a broken endpoint.

    Because tools, luck and agents are functions of what was said before, an episode that is played again with the same
    replies comes to the same place, on any machine.

    Args:
        lines: What is kept of it.
        identity: What models answer; replies of others are not taken.
        write: Takes lines that are to be kept, and whether they replace those that were (`Journals.write`); None keeps
            none.
    """

    def __init__(self, lines: bytes, identity: str, write: Callable[[bytes, bool], None] | None = None) -> None:
        self._kept = _replies(lines)
        self._identity = identity
        self._write = write
        self._begins_anew = bool(lines)  # without a line that a kill has cut, or that fits no more
        self.num_recalled = 0  # replies that were taken from those that were kept

    @property
    def num_kept(self) -> int:
        """How many replies are kept."""
        return len(self._kept)

    def recall(self, number: int, request: ChatRequest) -> ChatReply | None:
        """Return the reply to a call, if it was kept and the request is the same as then."""
        if number >= len(self._kept):
            return None
        key, reply = self._kept[number]
        if key != request_key(self._identity, request):
            del self._kept[number:]  # another agent, or other prompts: what followed belongs to it
            self._begins_anew = True
            return None
        self.num_recalled += 1
        return reply

    def keep(self, number: int, request: ChatRequest, reply: ChatReply) -> None:
        """Keep the reply to a call."""
        key = request_key(self._identity, request)
        lines = _line(number, key, reply)
        if self._begins_anew:
            before = (_line(place, *entry) for place, entry in enumerate(self._kept))
            lines = b"".join((*before, lines))
        self._kept.append((key, reply))
        if self._write is not None:
            self._write(lines, self._begins_anew)
        self._begins_anew = False


def _line(number: int, key: str, reply: ChatReply) -> bytes:
    entry = {"number": number, "request": key, "reply": reply.to_mapping(), "from_cache": reply.from_cache}
    return encode_json_line(entry)


def _replies(lines: bytes) -> list[tuple[str, ChatReply]]:
    """Return the replies in lines up to the first that is none."""
    kept: list[tuple[str, ChatReply]] = []
    for number, line in enumerate(lines.split(b"\n")):
        try:
            entry = json.loads(line)
            reply = replace(ChatReply.from_mapping(entry["reply"]), from_cache=bool(entry["from_cache"]))
            if entry["number"] != number:
                break
            kept.append((str(entry["request"]), reply))
        except (ValueError, KeyError, TypeError, RecursionError):
            break
    return kept
