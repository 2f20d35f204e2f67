"""Playing an episode of a program, of a server behind the proxy, or of a trace again, from what is written of it.

Each call meets the law's draws once more, and what the functions themselves did is taken from the record: none of them
is called.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.play import on_branch
from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord
from resilisim.evaluation.episode.rejudging import law_and_rules
from resilisim.evaluation.run.store import read_manifest
from resilisim.injection.call import GONE
from resilisim.injection.call_arguments import CallArguments
from resilisim.injection.folder import CALLS_NAME
from resilisim.injection.inject_options import InjectionSettings
from resilisim.injection.injected_episode import InjectedEpisode
from resilisim.injection.traces.recording import FAULTS_NAME, Recorded
from resilisim.injection.traces.traced import TracedCall
from resilisim.run_folder import own_file, read_json_lines
from resilisim.simulator import FINISH, Goal
from resilisim.simulator.draws import Branch
from resilisim.simulator.messages import Message, MessageKind
from resilisim.tool_library import Tool, ToolLibrary

_ENDS = ("finish", "stop", "agent_error")


def is_of_program(directory: Path | str) -> bool:
    """Return whether the episodes of a folder are those of a program's calls.

    Raises:
        StoreError: It is not a folder of results.
    """
    return "inject" in read_manifest(directory)["arguments"]


def replay_calls(directory: Path | str, record: EpisodeRecord) -> EpisodeRecord:
    """Play an episode again from its recorded calls; nothing is written, and none of the functions is called.

    Args:
        directory: The folder of the calls.
        record: The episode.

    Raises:
        InvalidInputError: The calls of the episode are not all there, or cannot have happened.
        StoreError: It is not a folder of calls.
    """
    inject = read_manifest(directory)["arguments"]["inject"]
    tools = json.dumps({"tools": inject["functions"]})
    library = ToolLibrary.from_json(tools, source=f"the functions of {directory}")
    traced = Recorded() if (Path(directory) / FAULTS_NAME).exists() else None
    branch = Branch.of_texts(record["branch"]) if "branch" in record else None
    settings = replace(_settings(record, tuple(inject.get("force", ()))), draws=traced or branch)
    episode = InjectedEpisode(settings, library)
    if episode.instance_id != record["instance_id"]:
        raise InvalidInputError(f"episode {record['index']} of {directory} is one of other functions: expected its own")
    lines = _Lines(directory, record)
    gone: list[tuple[Mapping[str, Any], Any]] = []
    ending: StepRecord | None = None
    for step in record["steps"]:
        if step["kind"] in _ENDS:
            ending = step
        elif step["kind"] == "execute" and step["attempt"] is not None:
            line = lines.of(step)
            if line["tool"] not in episode.tool_names:  # it came by while the episode was played
                episode.add_tools([Tool(line["tool"], f"The tool {line['tool']}.")])
            if traced is not None:
                traced.call = TracedCall(line["tool"], error=line["error"], words=line["message"] or "")
            drawn = episode.draw(line["tool"], _arguments(line))
            if (line["error"], line["message"]) == GONE:
                gone.append((line, drawn))
            else:
                _settle(episode, line, drawn, bool(step.get("real")))
        else:
            line = lines.of(step)
            episode.misused(line["tool"], _arguments(line), line["error"], line["message"], ran=line["ran"])
    for line, drawn in gone:
        _settle(episode, line, drawn, True)
    message = FINISH if ending is None else Message(cast("MessageKind", ending["kind"]))
    episode.end(message, _veto(record), None if ending is None else ending["error"])
    if episode.record is None:
        raise InvalidInputError(f"episode {record['index']} of {directory} does not end with its last call")
    again = cast("EpisodeRecord", {**episode.record, "index": record["index"], "manifest": record["manifest"]})
    return on_branch(again, branch)


def _settings(record: EpisodeRecord, force: tuple[str, ...]) -> InjectionSettings:
    goal = record.get("goal", {})
    wanted = Goal.recorded(record["required_tools"], goal)
    law, rules = law_and_rules(record)
    return InjectionSettings(
        law=law,
        seed=record["seed"],
        directory=None,
        required=wanted.required,
        counts=wanted.counts,
        ordered=wanted.ordered,
        turns=rules.max_turns,
        check=(lambda: None) if goal.get("check") else None,  # what it has said is in the record
        once=wanted.once,
        raises=lambda failure: failure,
        dependencies={},
        name=record["policy"],
        salt=record["salt"],
        force=force,
    )


def _veto(record: EpisodeRecord) -> str | None:
    """Return why the outcome is not right although all calls were, if something said so."""
    if record["steps"][-1]["kind"] == "agent_error":
        return "agent_error"
    criteria = record["score"].get("grade", {}).get("criteria", {})
    return None if criteria.get("check", True) else "wrong_end_state"


def _arguments(line: Mapping[str, Any]) -> CallArguments:
    return CallArguments.recorded(line["arguments"], line["input"])


def _settle(episode: InjectedEpisode, line: Mapping[str, Any], drawn: Any, undone: bool) -> None:
    failure = (line["error"], line["message"] or "") if line["outcome"] == "real" else None
    episode.settle(
        line["tool"],
        _arguments(line),
        drawn,
        failure,
        line["ran"],
        line["seconds"],
        corruption=line.get("corruption"),
        undone=undone,
    )


class _Lines:
    """The lines of an episode's calls, found by the steps that they are."""

    def __init__(self, directory: Path | str, record: EpisodeRecord) -> None:
        self._where = f"{directory} holds no line of call"
        lines = [line for line in _lines(directory) if line.get("episode") == record["index"]]
        self._drawn = {(line["tool"], line["attempt"]): line for line in lines if line["outcome"] != "misuse"}
        self._misused = iter(
            sorted((line for line in lines if line["outcome"] == "misuse"), key=lambda one: one["call"])
        )

    def of(self, step: StepRecord) -> Mapping[str, Any]:
        """Return the line of a step."""
        if step["attempt"] is None:
            line = next(self._misused, None)
        else:
            line = self._drawn.get((step["tool"], step["attempt"]))
        if line is None:
            raise InvalidInputError(f"{self._where} {step['turn']} ({step['tool']}): expected all of {CALLS_NAME}")
        return line


def _lines(directory: Path | str) -> Iterator[Mapping[str, Any]]:
    for line in read_json_lines(own_file(Path(directory), CALLS_NAME)):
        if isinstance(line, Mapping):
            yield line
