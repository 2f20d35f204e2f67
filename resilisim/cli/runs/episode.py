"""`resilisim runs episode` and `replay`: one episode of a run, read as a transcript or played again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from resilisim.cli import options
from resilisim.cli.goal_options import note_unused
from resilisim.cli.output import console, note, plain, print_json
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, StepRecord, is_failure
from resilisim.evaluation.episode.rejudging import compare_records, unused_force
from resilisim.evaluation.episode.texts import has_agent_texts, newly_told, opened_if_whole, prompt_of, replies_of
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.replay import find_episode, finished, replay_episode
from resilisim.evaluation.run.store import read_manifest
from resilisim.injection.replay import is_of_program, replay_calls
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION

CUT_LINES, CUT_LENGTH = 12, 1200  # of a text that is not shown whole
LABEL_WIDTH = 15
EVENT_STYLES = {
    **dict.fromkeys(("malformed_reply", "invalid_action", "warning", "limit"), "yellow"),
    **dict.fromkeys(("failure", "task_failed"), "red"),
}
# Numbers of a component of an agent, and the heads of their columns.
COMPONENT_COLUMNS = {
    "calls": "calls",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "reply tokens",
    "latency_seconds": "seconds",
    "from_cache": "from cache",
    "cost": "US dollars",
}

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the results.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Number of the episode, or its task's id; TASK:SEED:POLICY:PROMPT.")
]


def show(
    run: RunArgument,
    episode: IdArgument,
    full: Annotated[
        bool, typer.Option("--full", help="Show every message in full, prompts included; otherwise long ones are cut.")
    ] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Show an episode: messages, calls, plan, memory; value, regret and luck beside each turn."""
    episode_record = find_episode(run, episode)
    record = finished(episode_record)
    if as_json:
        print_json(episode_record if record is None else opened_if_whole(record)[0])
    elif record is not None:
        print_transcript(record, console(), full)
    elif is_failure(episode_record):
        _print_failure(episode_record, console())


@options.takes(
    models=options.OptionGroup(
        ModelSettings, ["models", "base_url", "retries", "timeout_seconds", "prices"], options.MODEL_PANEL
    )
)
def replay(
    *,
    run: RunArgument,
    episode: IdArgument,
    live: Annotated[
        bool, typer.Option("--live", help="Ask the models of the run again instead of using the recorded replies.")
    ] = False,
    models: ModelSettings,
    force: Annotated[
        list[str] | None,
        typer.Option("--force", help="Another result for a call, as TOOL#NUMBER=RESULT; repeatable."),
    ] = None,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    full: Annotated[bool, typer.Option("--full", help="Show every message in full, prompts included.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Replay one episode; nothing is written.

    With the recorded replies, and nothing forced, it must end as it did before. Calls of your own program, or behind
    the proxy, are drawn anew; what the functions did is taken from the record, and none of them is called.
    """
    episode_record = find_episode(run, episode)
    record = finished(episode_record)
    if is_of_program(run):
        if live or models.models or force or record is None:
            raise InvalidInputError(
                f"{run}: a program made these calls itself, and they are replayed as they were recorded: expected an "
                "episode that has ended, and neither --live nor --force (`resilisim inject run --force` plays anew)"
            )
        _tell_replayed(record, replay_calls(run, record), full, as_json)
        return
    tool_library = options.load(library)
    asked: ModelSettings | None = None
    if live or models.models or record is None:
        asked = models_asked_again(run, episode_record["policy"], models)
    again = replay_episode(
        run,
        episode_record,
        lambda task: options.find_task(task, tasks, tool_library),
        tool_library,
        asked,
        models.prices,
        force or (),
    )
    if record is not None and asked is None and not force:
        _tell_replayed(record, again, full, as_json)
        return
    _print(again, full, as_json)
    note_unused(unused_force(force or (), [again]))
    if record is None:
        note("the episode reached its end; nothing was written: repeat the run's own command to finish it")
    else:
        note(f"recorded: {record['score']['level']}; now: {again['score']['level']}")


def _print(again: EpisodeRecord, full: bool, as_json: bool) -> None:
    if as_json:
        print_json(again)
    else:
        print_transcript(again, console(), full)


def _tell_replayed(record: EpisodeRecord, again: EpisodeRecord, full: bool, as_json: bool) -> None:
    """Print an episode that was replayed as it was recorded, and say whether it ended as it did before."""
    _print(again, full, as_json)
    _, difference = compare_records(record, again, tolerance=0.0)
    note("the same as recorded, to the last digit" if difference is None else f"not as recorded: {difference}")
    if difference is not None:
        raise typer.Exit(1)


def models_asked_again(run: Path, policy: str, models: ModelSettings) -> ModelSettings:
    """Return the models that a policy of a run was played with, unless others are named, to be asked one by one."""
    models = models_of_run(run, policy, models)
    return replace(models, chat=replace(models.chat, max_concurrency=1), concurrency=1, give_up_after=1)


def models_of_run(run: Path, policy: str, models: ModelSettings) -> ModelSettings:
    """Return the models that a policy of a run was played with, unless others are named.

    Each is spelt with its endpoint, so that a key is only sent to the host that it is for (`named_endpoint`).
    """
    if models.models:
        base_url = models.chat.base_url or _base_url_of(run, policy)
        models = replace(models, chat=replace(models.chat, base_url=base_url))
    options = models.model_options or tuple(read_manifest(run)["arguments"].get("model_options", ()))
    named = models.models or _models_of(run, policy, with_endpoints=models.chat.base_url is None)
    return replace(models, models=named, model_options=options)


def _base_url_of(run: Path, policy: str) -> str | None:
    """Return where the models of a policy of a run were asked, if that was one endpoint."""
    urls = {url for identity in _identities(run, policy).values() if (url := _url_in(identity)) is not None}
    return urls.pop() if len(urls) == 1 else None


def _url_in(identity: str) -> str | None:
    """Return the address that the identity of a model names, behind which its options stand."""
    place = identity.partition(" at ")[2].partition(", ")[0]
    return place if place.startswith(("http://", "https://")) else None


def _models_of(run: Path, policy: str, *, with_endpoints: bool) -> tuple[str, ...]:
    """Return the models that a policy of a run was played with, as they are spelt on the command line."""
    spelt = {}
    for role, identity in _identities(run, policy).items():
        url = _url_in(identity) if with_endpoints else None
        spelt[role] = identity.partition(" at ")[0] + ("" if url is None else f"@{url}")
    return tuple(name if role == "default" else f"{role}={name}" for role, name in spelt.items())


def _identities(run: Path, policy: str) -> Mapping[str, str]:
    arguments = read_manifest(run)["arguments"]
    models: Mapping[str, str] = arguments.get("models_of_policies", {}).get(policy, arguments.get("models", {}))
    return models


def _print_failure(failure: FailureRecord, out: Console) -> None:
    played = ", ".join([failure["instance_id"], failure["prompt_type"], f"seed {failure['seed']}"])
    out.print(plain(f"Episode {failure['index']}: not finished", "bold"))
    out.print(plain(f"{failure['policy']} on {played}"))
    out.print(plain(f"{failure['reason']}: {failure['error']}"))
    out.print(plain(f"{failure['calls']} calls of the model had been answered; their replies are kept."))


def print_transcript(record: EpisodeRecord, out: Console, full: bool = False) -> None:
    """Print an episode, as far as its record has kept what was said; long texts whole if they are to be `full`."""
    record, problem = opened_if_whole(record)
    shown = _Transcript(record, out, full)
    shown.print_head()
    if problem is not None:
        shown.line(problem, "yellow")
    agent = record.get("agent")
    prompt = prompt_of(record)
    if agent is not None:
        shown.print_dialogue(agent)
        shown.print_structure(agent.get("structure", {}))
        shown.print_components(agent)
    else:
        if prompt is not None:
            shown.text("prompt", prompt, "dim")
        shown.print_steps(len(record["steps"]))
    shown.print_end()


class _Transcript:
    """Prints the parts of an episode."""

    def __init__(self, record: EpisodeRecord, out: Console, full: bool) -> None:
        self._record = record
        self._out = out
        self._full = full
        self._turns = list(zip(record["steps"], replies_of(record), strict=True))  # those that are left to print

    def line(self, text: str, style: str = "") -> None:
        """Print a line as it stands."""
        self._out.print(plain(text, style))

    def text(self, label: str, text: str, style: str = "", full: bool = False) -> None:
        """Print a text beside its label; a long one is cut."""
        text = text.strip("\n")
        shown = text if self._full or full else _cut(text)
        grid = Grid.grid(padding=(0, 1))
        grid.add_column(width=LABEL_WIDTH)
        grid.add_column(overflow="fold")
        grid.add_row(plain(label, style), plain(shown, style))
        self._out.print(grid)

    def print_head(self) -> None:
        record = self._record
        level = record["score"]["level"].replace("_", " ")
        self.line(f"Episode {record['index']}: {record['policy']}, {level}", "bold")
        self.line(
            f"task {record['instance_id']} ({record['task_type']}), prompt {record['prompt_type']}, seed "
            f"{record['seed']}, ended by {record['ended_by']}"
        )
        self.line("required: " + ", ".join(record["required_tools"]))

    def print_dialogue(self, agent: Mapping[str, Any]) -> None:
        """Print calls of the model, events and turns in the order in which they happened."""
        if not has_agent_texts(self._record):
            self.line("what the models were told and what they wrote was not kept (--record-texts)", "yellow")
        events = list(agent["events"])
        # Only the last trial's turns are kept, so after a new beginning they all stand at the end.
        is_whole = not any(event["kind"] == "restart" for event in events)
        for number, (call, messages) in enumerate(zip(agent["calls"], newly_told(self._record), strict=True)):
            while events and events[0]["call"] <= number:
                self._print_event(events.pop(0), is_whole)
            self.print_steps(call["turn"] if is_whole else 0)
            self._print_call(number, call, [agent["messages"][place] for place in messages])
        for event in events:
            self._print_event(event, is_whole)
        self.print_steps(len(self._record["steps"]))

    def print_steps(self, until: int) -> None:
        """Print the turns up to one of that number, as far as they are not printed yet."""
        while self._turns and self._turns[0][0]["turn"] <= until:
            self._print_step(*self._turns.pop(0))

    def _print_call(self, number: int, call: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        reply, usage = call["reply"], call["reply"]["usage"]
        facts = f"{usage['prompt_tokens']}+{usage['completion_tokens']} tokens, {reply['latency_seconds']:.2f} s"
        if call["from_cache"]:
            facts += ", from the cache"
        self._out.print()
        self.line(f"-- call {number}: {call['role']} asks {call['model']} ({facts})", "bold")
        for message in messages:
            self.text(message["role"], str(message["content"]) + _calls_in(message), "dim")
        if reply.get("thoughts"):
            self.text("thought", reply["thoughts"], "dim")
        if "text" in reply:
            self.text("said", reply["text"] + _calls_in(reply) or "(nothing)")

    def _print_event(self, event: Mapping[str, Any], is_whole: bool) -> None:
        self.print_steps(event["turn"] if is_whole else 0)
        details = event.get("details")
        parts = [event["text"], json.dumps(details, ensure_ascii=False) if details else ""]
        text = "\n".join(filter(None, parts))
        text = f"{event['component']}: {text}" if text else event["component"]
        self.text(event["kind"].replace("_", " "), text, EVENT_STYLES.get(event["kind"], ""))

    def _print_step(self, step: StepRecord, reply: str | None) -> None:
        result = result_of(step)
        chance = "" if step["success_probability"] is None else f" at {step['success_probability']:.3f}"
        what = " ".join(filter(None, [step["kind"], step["tool"]])) + (f": {result}{chance}" if result else "")
        self.line(f"== turn {step['turn']}: {what}", "bold cyan")
        if step["kind"] not in ("finish", "stop") and step["message"]:
            self.text("message", step["message"], "cyan")
        if reply:
            self.text("reply", reply)
        if "no_ceiling" in self._record:
            return
        numbers = f"V* {step['value']:.4f}, Q* {step['action_value']:.4f}"
        worth = f"{numbers}, regret {step['regret']:.4f}, luck {step['luck']:+.4f}"
        self.text(
            "worth", worth + (f" ({step['label'].replace('_', ' ')})" if step["label"] else ""), "cyan", full=True
        )
        if "best" in step and step["label"]:
            self.text("best", f"{step['best']} (Q* {step['value']:.4f})", "cyan", full=True)

    def print_structure(self, structure: Mapping[str, Any]) -> None:
        for name, value in structure.items():
            self._out.print()
            self.line(f"-- {name.replace('_', ' ')}", "bold")
            self.text("", json.dumps(value, indent=2, ensure_ascii=False))

    def print_components(self, agent: Mapping[str, Any]) -> None:
        rows = [[role, *(usage[name] for name in COMPONENT_COLUMNS)] for role, usage in agent["components"].items()]
        title = f"Calls of the model ({agent['protocol']} protocol)"
        self._out.print()
        self._out.print(Table.of_values(title, ["component", *COMPONENT_COLUMNS.values()], rows))
        failure = agent["first_failure"]
        self.line(f"the agent ended by {agent['ended_by'].replace('_', ' ')}")
        if failure is not None:
            self.line(f"first component to give up: {failure['component']} ({failure['text']})")
        counters = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in agent["counters"].items())
        if counters:
            self.line(counters)

    def print_end(self) -> None:
        after_search = self._record.get("optimum_after_searches")
        if after_search is not None:
            self.line(
                f"reference: {after_search:.4f}, V*: {self._record['optimum']:.4f}; the tools had to be found, which "
                f"takes {self._record.get('searches_needed')} searches; their price counts as "
                "information, not as a mistake"
            )
        self.line(points_lost(self._record))


def points_lost(record: EpisodeRecord) -> str:
    """Say how the points that an episode lost add up."""
    luck = record["luck"]
    if "no_ceiling" in record:
        return f"no V*: {record['no_ceiling']}"
    return (
        f"points lost: {1 - record['outcome']} = {1 - record['optimum']:.4f} unavoidable + {record['regret']:.4f} "
        f"by calls {'-' if luck > 0 else '+'} {abs(luck):.4f} by {'good' if luck > 0 else 'bad'} luck"
    )


def result_of(step: StepRecord) -> str:
    """Say how the call of a message went, or why there was none."""
    return "success" if step["success"] else step["error"] or ("" if step["success"] is None else "failure")


def _calls_in(message: Mapping[str, Any]) -> str:
    return "".join(f"\n{call['name']}({call['arguments']})" for call in message.get("tool_calls", ()))


def _cut(text: str) -> str:
    kept = "\n".join(text.splitlines()[:CUT_LINES])[:CUT_LENGTH]
    left = len(text) - len(kept)
    return f"{kept}\n[{left:,} more characters: --full]" if left > 0 else kept
