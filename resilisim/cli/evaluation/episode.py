"""`resilisim episode`: one episode of a run, read as a transcript or played again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from resilisim.cli.options import (
    MODEL_PANEL,
    JsonFlag,
    LibraryOption,
    OptionGroup,
    TasksOption,
    command_group,
    find_task,
    load,
    takes,
)
from resilisim.cli.output import console, note, plain, print_json, table
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, StepRecord, is_failure
from resilisim.evaluation.episode.texts import has_agent_texts, newly_told, opened_if_whole, prompt_of, replies_of
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.replay import find_episode, finished, first_difference, replay_episode
from resilisim.evaluation.run.store import read_manifest

app = command_group()

CUT_LINES, CUT_LENGTH = 12, 1200  # of a text that is not shown whole
LABEL_WIDTH = 15

Turn = tuple[StepRecord, str | None]  # a message and the environment's reply to it

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the results.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Number of the episode, or its task's id; TASK:SEED:POLICY:PROMPT.")
]


@app.command("show")
def show(
    run: RunArgument,
    episode: IdArgument,
    full: Annotated[
        bool, typer.Option("--full", help="Every message whole, prompts included; long ones are cut otherwise.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show an episode: messages, calls, plan, memory; value, regret and luck beside each turn."""
    found = find_episode(run, episode)
    record = finished(found)
    if as_json:
        print_json(found if record is None else opened_if_whole(record)[0])
    elif record is not None:
        print_transcript(record, console(), full)
    elif is_failure(found):
        print_failure(found, console())


@app.command("replay")
@takes(models=OptionGroup(ModelSettings, ["models", "base_url", "retries", "timeout_seconds", "prices"], MODEL_PANEL))
def replay(
    *,
    run: RunArgument,
    episode: IdArgument,
    live: Annotated[
        bool, typer.Option("--live", help="Ask the models of the run anew instead of taking the recorded replies.")
    ] = False,
    models: ModelSettings,
    tasks: TasksOption = "benchmark-v1",
    library: LibraryOption = None,
    full: Annotated[bool, typer.Option("--full", help="Every message whole, prompts included.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Play an episode again, alone; nothing is written. From the recorded replies it must come to the same end."""
    found = find_episode(run, episode)
    record = finished(found)
    chosen = load(library)
    asked: ModelSettings | None = None
    if live or models.models or record is None:
        base_url = models.chat.base_url or _base_url_of(run, found["policy"])
        asked = replace(
            models,
            models=models.models or _models_of(run, found["policy"]),
            chat=replace(models.chat, base_url=base_url, max_concurrency=1),
            concurrency=1,
            give_up_after=1,
        )
    again = replay_episode(run, found, lambda task: find_task(task, tasks, chosen), chosen, asked, models.prices)
    if as_json:
        print_json(again)
    else:
        print_transcript(again, console(), full)
    if record is None:
        note("the episode came to its end; nothing was written, the run's own command finishes it")
    elif asked is not None:
        note(f"recorded: {record['score']['level']}; now: {again['score']['level']}")
    else:
        difference = first_difference(record, again)
        note("the same as recorded, to the last digit" if difference is None else f"not as recorded: {difference}")
        if difference is not None:
            raise typer.Exit(1)


def _base_url_of(run: Path, policy: str) -> str | None:
    """Return where the models of a policy of a run were asked, if that was an endpoint."""
    places = (identity.partition(" at ")[2] for identity in _identities(run, policy).values())
    return next((place for place in places if place.startswith(("http://", "https://"))), None)


def _models_of(run: Path, policy: str) -> tuple[str, ...]:
    """Return the models that a policy of a run was played with, as they are spelt on the command line."""
    spelt = {role: identity.partition(" at ")[0] for role, identity in _identities(run, policy).items()}
    return tuple(name if role == "default" else f"{role}={name}" for role, name in spelt.items())


def _identities(run: Path, policy: str) -> Mapping[str, str]:
    arguments = read_manifest(run)["arguments"]
    models: Mapping[str, str] = arguments.get("models_of_policies", {}).get(policy, arguments.get("models", {}))
    return models


def print_failure(failure: FailureRecord, out: Console) -> None:
    """Print why an episode is not finished."""
    out.print(plain(f"Episode {failure['index']}: not finished", "bold"))
    out.print(
        plain(f"{failure['policy']} on {failure['instance_id']}, {failure['prompt_type']}, seed {failure['seed']}")
    )
    out.print(plain(f"{failure['reason']}: {failure['error']}"))
    out.print(plain(f"{failure['calls']} calls of the model were answered before; their replies are kept."))


def print_transcript(record: EpisodeRecord, out: Console, full: bool = False) -> None:
    """Print an episode, as far as its record has kept what was said.

    Args:
        record: The episode.
        out: Where to.
        full: Whether long texts are shown whole.
    """
    record, problem = opened_if_whole(record)
    _print_head(record, out)
    if problem is not None:
        out.print(plain(problem, "yellow"))
    agent = record.get("agent")
    turns = list(zip(record["steps"], replies_of(record), strict=True))
    if agent is not None:
        _print_dialogue(record, agent, turns, out, full)
        _print_structure(agent.get("structure", {}), out, full)
        _print_components(agent, out)
    else:
        prompt = prompt_of(record)
        if prompt is not None:
            _print_text("prompt", prompt, out, full, "dim")
        for turn in turns:
            _print_step(*turn, out, full)
    _print_end(record, out)


def _print_head(record: EpisodeRecord, out: Console) -> None:
    level = record["score"]["level"].replace("_", " ")
    out.print(plain(f"Episode {record['index']}: {record['policy']}, {level}", "bold"))
    out.print(
        plain(
            f"task {record['instance_id']} ({record['task_type']}), prompt {record['prompt_type']}, seed "
            f"{record['seed']}, ended by {record['ended_by']}"
        )
    )
    out.print(plain("required: " + ", ".join(record["required_tools"])))


def _print_dialogue(
    record: EpisodeRecord, agent: Mapping[str, Any], turns: Sequence[Turn], out: Console, full: bool
) -> None:
    """Print calls of the model, events and turns in the order in which they happened."""
    if not has_agent_texts(record):
        out.print(plain("what the models were told and wrote was not kept (--record-texts)", "yellow"))
    restarts = [place for place, event in enumerate(agent["events"]) if event["kind"] == "restart"]
    steps = iter(turns if not restarts else ())  # only the last trial's turns are kept
    sent = 0
    events = list(agent["events"])
    for number, (call, told) in enumerate(zip(agent["calls"], newly_told(record), strict=True)):
        while events and events[0]["call"] <= number:
            sent = _print_steps_until(steps, sent, events[0]["turn"], out, full)
            _print_event(events.pop(0), out, full)
        sent = _print_steps_until(steps, sent, call["turn"], out, full)
        _print_call(number, call, [agent["messages"][place] for place in told], out, full)
    for event in events:
        sent = _print_steps_until(steps, sent, event["turn"], out, full)
        _print_event(event, out, full)
    for turn in steps if not restarts else turns:
        _print_step(*turn, out, full)


def _print_steps_until(steps: Iterator[Turn], sent: int, turn: int, out: Console, full: bool) -> int:
    while sent < turn:
        step = next(steps, None)
        if step is None:
            break
        _print_step(*step, out, full)
        sent += 1
    return sent


def _print_call(
    number: int,
    call: Mapping[str, Any],
    told: Sequence[Mapping[str, Any]],
    out: Console,
    full: bool,
) -> None:
    reply = call["reply"]
    usage = reply["usage"]
    facts = f"{usage['prompt_tokens']}+{usage['completion_tokens']} tokens, {reply['latency_seconds']:.2f} s"
    if call["from_cache"]:
        facts += ", from the cache"
    out.print()
    out.print(plain(f"-- call {number}: {call['role']} asks {call['model']} ({facts})", "bold"))
    for message in told:
        _print_text(message["role"], _message_text(message), out, full, "dim")
    if reply.get("thoughts"):
        _print_text("thought", reply["thoughts"], out, full, "dim")
    if "text" in reply:
        written = reply["text"] + "".join(f"\n{call_['name']}({call_['arguments']})" for call_ in reply["tool_calls"])
        _print_text("said", written or "(nothing)", out, full)


def _message_text(message: Mapping[str, Any]) -> str:
    calls = "".join(f"\n{call['name']}({call['arguments']})" for call in message.get("tool_calls", ()))
    return str(message["content"]) + calls


def _print_event(event: Mapping[str, Any], out: Console, full: bool) -> None:
    details = event.get("details")
    text = event["text"]
    if details:
        text += ("\n" if text else "") + json.dumps(details, ensure_ascii=False)
    style = "yellow" if event["kind"] in ("malformed_reply", "invalid_action", "warning", "limit") else ""
    style = "red" if event["kind"] in ("failure", "task_failed") else style
    _print_text(
        event["kind"].replace("_", " "),
        f"{event['component']}: {text}" if text else event["component"],
        out,
        full,
        style,
    )


def _print_step(step: StepRecord, reply: str | None, out: Console, full: bool) -> None:
    result = result_of(step)
    chance = "" if step["success_probability"] is None else f" at {step['success_probability']:.3f}"
    what = " ".join(filter(None, [step["kind"], step["tool"]])) + (f": {result}{chance}" if result else "")
    out.print(plain(f"== turn {step['turn']}: {what}", "bold cyan"))
    if step["kind"] not in ("finish", "stop") and step["message"]:
        _print_text("message", step["message"], out, full, "cyan")
    if reply:
        _print_text("reply", reply, out, full)
    worth = (
        f"V* {step['value']:.4f}, Q* {step['action_value']:.4f}, regret {step['regret']:.4f}, luck {step['luck']:+.4f}"
    )
    _print_text("worth", worth + (f" ({step['label'].replace('_', ' ')})" if step["label"] else ""), out, True, "cyan")


def _print_structure(structure: Mapping[str, Any], out: Console, full: bool) -> None:
    for name, value in structure.items():
        out.print()
        out.print(plain(f"-- {name.replace('_', ' ')}", "bold"))
        _print_text("", json.dumps(value, indent=2, ensure_ascii=False), out, full)


def _print_components(agent: Mapping[str, Any], out: Console) -> None:
    rows = [
        [
            role,
            usage["calls"],
            usage["prompt_tokens"],
            usage["completion_tokens"],
            usage["latency_seconds"],
            usage["from_cache"],
            usage["cost"],
        ]
        for role, usage in agent["components"].items()
    ]
    columns = ["component", "calls", "prompt tokens", "reply tokens", "seconds", "from cache", "US dollars"]
    out.print()
    out.print(table(f"Calls of the model ({agent['protocol']} protocol)", columns, rows))
    failure = agent["first_failure"]
    out.print(plain(f"the agent ended by {agent['ended_by'].replace('_', ' ')}"))
    if failure is not None:
        out.print(plain(f"first component to give up: {failure['component']} ({failure['text']})"))
    counters = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in agent["counters"].items())
    if counters:
        out.print(plain(counters))


def _print_end(record: EpisodeRecord, out: Console) -> None:
    after_search = record.get("known_after_search")
    if after_search is not None:
        out.print(
            plain(
                f"ceiling: {after_search:.4f}, V*: {record['optimum']:.4f}; the tools had to be found, "
                f"which takes at least {record.get('searches_needed')} searches; their price is information, no blame"
            )
        )
    out.print(plain(points_lost(record)))


def points_lost(record: EpisodeRecord) -> str:
    """Say how the points that an episode lost add up."""
    luck = record["luck"]
    return (
        f"points lost: {1 - record['outcome']} = {1 - record['optimum']:.4f} unavoidable + {record['regret']:.4f} "
        f"by calls {'-' if luck > 0 else '+'} {abs(luck):.4f} by {'good' if luck > 0 else 'bad'} luck"
    )


def result_of(step: StepRecord) -> str:
    """Say how the call of a message went, or why there was none."""
    return "success" if step["success"] else step["error"] or ("" if step["success"] is None else "failure")


def _print_text(label: str, text: str, out: Console, full: bool, style: str = "") -> None:
    shown = text.strip("\n") if full else _cut(text.strip("\n"))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=LABEL_WIDTH)
    grid.add_column(overflow="fold")
    grid.add_row(plain(label, style), plain(shown, style))
    out.print(grid)


def _cut(text: str) -> str:
    lines = text.splitlines()
    kept = "\n".join(lines[:CUT_LINES])[:CUT_LENGTH]
    left = len(text) - len(kept)
    return f"{kept}\n[{left:,} more characters: --full]" if left > 0 else kept
