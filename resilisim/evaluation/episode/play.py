"""One episode: a policy plays, the exact optimum judges every message, the record keeps both."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import EpisodeEnded, OnFailure, Session, Start, Step
from resilisim.envs.settings import EnvironmentSettings, Tools
from resilisim.errors import fault_of, told_error
from resilisim.evaluation.episode.attribution import Attribution
from resilisim.evaluation.episode.record import (
    EpisodeFacts,
    EpisodeRecord,
    FlawRecord,
    SpokenTexts,
    StepRecord,
    fitting_ceiling,
)
from resilisim.evaluation.episode.record_builder import Happened, RecordBuilder, first_problem
from resilisim.policies.agent_record import AgentRecord, EventRecord, Journal, empty_part
from resilisim.policies.base import (
    AgentFailed,
    Contender,
    SessionAgent,
    is_ours,
    is_privileged,
    play,
    policy_name,
)
from resilisim.policies.usage import agent_part
from resilisim.provenance import content_hash
from resilisim.redaction import fit_to_show
from resilisim.simulator import Problem
from resilisim.simulator.draws import Branch
from resilisim.tasks import Task
from resilisim.tasks.searches import Searches
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.prompts import Prompt

LONGEST_TRACEBACK = 4_000  # characters in a record


class PlaceInRun(TypedDict, total=False):
    """Where an episode belongs, as its record says it.

    `index` is its number in the plan of its run, `name` that of the policy (its own if left out), `manifest` the hash
    of the run's arguments.
    """

    index: int
    name: str
    manifest: str


class Judging:
    """Looks on at an episode: every message is judged by the exact optimum, and all of it is kept for the record.

    Attributes:
        texts: All that the environment said.
        outcome: 1 if the episode has ended in full success, else 0.

    Raises:
        ExactLimitError: As an episode begins whose task is too large to be solved exactly.
    """

    def __init__(self) -> None:
        self._builder = RecordBuilder()
        self.texts = SpokenTexts(prompt="", replies=[])
        self.outcome = 0

    @property
    def steps(self) -> list[StepRecord]:
        """What each message was worth."""
        return self._builder.steps

    def begun(self, start: Start) -> None:
        """Solve the task."""
        self._start = start
        self.problem: Problem = start.info["problem"]
        self._flaw = flaw_with_plan(start.env, start.task, start.prompt, start.info["flaw"])
        self._attribution = Attribution(start.env.judged(), start.info["planner"], self._flaw)
        self._builder = RecordBuilder()
        self.texts = SpokenTexts(prompt=start.reply.observation, replies=[])
        self.outcome = 0
        self._used_native_calls = False

    def stepped(self, step: Step) -> None:
        """Judge a message."""
        info = step.info
        self._used_native_calls = self._used_native_calls or info["message"].native
        self.outcome = step.outcome
        refused = bool(info.get("execution", {}).get("real"))
        worth = self._attribution.worth(info["judgement"], step.before, info["message"], info["state"], refused)
        self.texts["replies"].append(step.reply.observation)
        execution = info.get("execution")
        happened = Happened(error=_problem_told(info)) if execution is None else _what_happened(info, execution)
        tool = info["message"].tool if execution is None else execution["tool"]
        self._builder.add(step.message or "", info["event"], tool, worth, **happened)

    def ended(self, step: Step) -> None:
        """Keep how it ended."""
        self._ending = step.info

    def record(self, policy: str, **place: Unpack[PlaceInRun]) -> EpisodeRecord:
        """Return the record of the episode that has ended, played by a policy of that name.

        The identity of its attribution has been checked.
        """
        start, problem, info = self._start, self.problem, self._ending
        env, task = start.env, start.task
        searches = Searches(None)
        if fitting_ceiling(info["prompt_type"], env.tools, start.privileged) == "optimum_after_searches":
            searches = env.searches_needed(task)
        facts = EpisodeFacts(
            index=place.get("index", 0),
            policy=place.get("name", policy),
            privileged=start.privileged,
            prompt_type=info["prompt_type"],
            planner=info["planner"],
            flaw=self._flaw,
            protocol="native" if self._used_native_calls else "text",
            instance_id=task.instance_id,
            task_type=task.task_type,
            complexity=task.complexity,
            required_tools=list(task.required_tools),
            seed=start.seed,
            salt=env.settings.salt,
            manifest=place.get("manifest", ""),
            texts=self.texts,
        )
        settings = env.settings
        if goal := problem.goal.to_mapping():
            facts["goal"] = goal
        if settings.search != "semantic":
            facts["search"] = settings.search
        if settings.errors != "documented":
            facts["errors"] = settings.errors
        if settings.world is not None:
            facts["world"], facts["answer"] = settings.world, info["message"].answer
        outputs = problem.library.outputs.intersection(task.required_tools)
        return self._builder.record(
            facts, problem, info["score"], outputs, self._attribution.totals(self.steps, searches)
        )


def flaw_with_plan(
    env: ConversationEnv, task: Task, prompt: str | Prompt, flaw: Mapping[str, Any] | None
) -> FlawRecord | None:
    """Return what is wrong with the plan in the prompt, together with the plan's tools and limits as shown."""
    if flaw is None:
        return None
    prompt = prompt if isinstance(prompt, Prompt) else env.prompt(task, prompt)
    if prompt.workflow is None:
        return cast("FlawRecord", dict(flaw))
    steps = prompt.workflow.steps
    shown: dict[str, Any] = {"plan": [step.tool for step in steps]}
    if any(step.is_limited for step in steps):
        shown["limits"] = [[step.max_tries, step.skip_from] for step in steps]
    return cast("FlawRecord", {**flaw, **shown})


def play_episode(
    env: ConversationEnv,
    policy: Contender,
    task: Task,
    prompt: str | Prompt,
    seed: int,
    sent: Sequence[str | None] = (),
    must_repeat: bool = False,
    **place: Unpack[PlaceInRun],
) -> EpisodeRecord:
    """Play one episode to its end.

    What a policy of somebody else's raises has lost it the episode; what one of this package raises is a bug.

    Args:
        env: The environment; it is reset.
        policy: The policy; it is reset.
        task: The task.
        prompt: Prompt type, or a rendered prompt.
        seed: Episode seed.
        sent: What was sent in an earlier try that broke, nobody can tell why; whoever sends something else now has seen
            the draws before, and the episode is lost.
        must_repeat: Whether sending something else is refused instead (`Session`).
        **place: For the record: its `index` in a run, the `name` of the policy (its own if omitted), the hash
            `manifest` of the run's arguments.

    Returns:
        The record; the identity of the attribution has been checked. That of an LLM agent has its part `agent`.

    Raises:
        ExactLimitError: The task is too large to be solved exactly.
        AgentFailed: The policy raised something that may be its own fault or that of an endpoint.
        Exception: Whatever a policy of this package raises.

    Example:
        >>> from resilisim import benchmark_tasks, make_policy
        >>> from resilisim.envs import ConversationEnv
        >>> from resilisim.evaluation import play_episode
        >>> record = play_episode(ConversationEnv(), make_policy("exact-optimum"), benchmark_tasks()[0], "optimal", 3)
        >>> record["outcome"], record["regret"], len(record["steps"])
        (1, 0.0, 8)
    """
    if isinstance(policy, SessionAgent):
        return play_in_own_loop(
            policy, play_agent_episode(env, policy, task, prompt, seed, None, sent, None, must_repeat, **place)
        )
    judging = Judging()
    session = Session(
        env,
        task,
        prompt,
        seed,
        privileged=is_privileged(policy),
        observers=[judging],
        sent=sent,
        must_repeat=must_repeat,
    )
    try:
        play(policy, session)
    except BaseException as error:
        _settle(session, judging, policy, error)
    session.raise_if_broken()
    return judging.record(policy_name(policy), **place)


def on_branch(record: EpisodeRecord, branch: Branch | None, dice: int = 1) -> EpisodeRecord:
    """Write into the record of an episode that was played on a branch how likely that was, and what it brought.

    Sets of replies of a model, `dice` many, share the weight.
    """
    if branch is not None:
        record["weight"], record["branch"] = branch.probability / dice, branch.to_texts()
        if dice > 1:
            record["dice"] = dice
            if "unplayed" in record:
                shared = record["unplayed"]
                losses = {label: loss / dice for label, loss in shared["losses"].items()}
                record["unplayed"] = {"most": shared["most"] / dice, "losses": losses}
    return record


def _settle(session: Session, judging: Judging, player: Contender, error: BaseException) -> AgentFailed | None:
    """Return if what came out of an agent has ended its episode, or comes after the end; raise it if not.

    An episode that the agent broke in is lost (`fault_of` says whose fault it is), and how it broke is returned.

    Raises:
        AgentFailed: Nobody can tell whose fault it is.
        BaseException: What was raised, where it is not the agent's doing.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit | asyncio.CancelledError):
        raise error
    session.raise_if_broken()
    if isinstance(error, EpisodeEnded):
        return None
    failed = error if isinstance(error, AgentFailed) else None
    if failed is None:
        if fault_of(error, is_ours(player)) in ("bug", "infrastructure"):
            raise error
        failed = AgentFailed.of(policy_name(player), error)
        failed.__cause__ = error
    if not session.reply.ended:
        if failed.fault != "agent":
            if not is_ours(player):  # replies of models that ours has asked are kept, and bring it to the same place
                failed.messages = tuple(session.sent)
            failed.optimum = judging.steps[0]["value"] if judging.steps else None
            raise failed
        session.lose(fit_to_show(_why(failed), one_line=True))
    return failed


def _note_loss(part: AgentRecord, step: StepRecord, traceback: str) -> None:
    """Write into an agent's part of a record how it broke, after its last message."""
    event = EventRecord(kind="failure", component="agent", text=step["error"] or "", call=len(part["calls"]))
    event["turn"] = step["turn"] - 1
    if traceback:
        event["details"] = {"traceback": fit_to_show(traceback)[-LONGEST_TRACEBACK:]}
    part["ended_by"] = "agent_error"
    part["events"] = [*part["events"], event]
    part["first_failure"] = part["first_failure"] or event


def _why(failed: AgentFailed) -> str:
    """Return how an agent broke, for the step of the record: what it raised, or that it ended with an error."""
    return str(failed) if failed.__cause__ is None else told_error(failed.__cause__)


def play_in_own_loop(agent: SessionAgent, episode: Coroutine[Any, Any, EpisodeRecord]) -> EpisodeRecord:
    """Play an episode in an event loop of its own, and close what the agent opened in it: connections, a server."""

    async def play_and_close() -> EpisodeRecord:
        try:
            return await episode
        finally:
            close = getattr(agent, "aclose", None)
            if close is not None:
                await close()

    return asyncio.run(play_and_close())


async def play_agent_episode(
    env: ConversationEnv,
    agent: SessionAgent,
    task: Task,
    prompt: str | Prompt,
    seed: int,
    journal: Journal | None = None,
    sent: Sequence[str | None] = (),
    seconds: float | None = None,
    must_repeat: bool = False,
    **place: Unpack[PlaceInRun],
) -> EpisodeRecord:
    """Play one episode of an agent with a loop of its own (`play_episode`).

    Many can be under way at once, each in its own environment.

    The journal keeps the model's replies while the episode is under way; None keeps none. An agent that takes longer
    than `seconds` is given up, which has lost it the episode; one of this package mostly waits for its model, so that
    nobody can tell.

    Raises:
        InfrastructureError: An endpoint is down; what was answered so far is in the journal.
        AgentFailed: The agent broke or was given up, and nobody can tell whose fault it is.
        Exception: Whatever else an agent of this package raises.
    """
    judging = Judging()
    session = Session(env, task, prompt, seed, observers=[judging], sent=sent, must_repeat=must_repeat)
    text = prompt if isinstance(prompt, str) else prompt.text
    identity = content_hash([task.instance_id, seed, env.settings.salt, text])
    part: AgentRecord | None = None
    failed: AgentFailed | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            part = await agent.play_session(session, identity=identity, journal=journal)
    except BaseException as error:
        if isinstance(error, TimeoutError) and limit.expired():
            words = f"the agent took longer than {seconds:g} seconds"
            error = AgentFailed(words, "TimeoutError", fault="unclear" if is_ours(agent) else "agent")
        failed = _settle(session, judging, agent, error)
    session.raise_if_broken()
    record = judging.record(policy_name(agent), **place)
    part = part or (failed.part if failed is not None else None) or empty_part(policy_name(agent))
    if record["ended_by"] == "agent_error":
        _note_loss(part, record["steps"][-1], "" if failed is None else failed.traceback)
    record["agent"] = part
    record["privileged"] = part["oracle"]  # it was told what no agent may know
    return record


def open_session(
    task: str | Mapping[str, Any] | Task | None = None,
    seed: int = 0,
    prompt: str | Prompt = "baseline",
    tools: Tools = "native",
    *,
    on_failure: OnFailure = "return",
    name: str = "session",
    environment: EnvironmentSettings | None = None,
    library: ToolLibrary | None = None,
    **options: Any,
) -> Session:
    """Begin an episode for an agent that keeps its own loop; use it in a `with` block.

    Leaving the block without `finish` is the agent's stop. The same task, seed and calls are the same episode as in
    Conversation-v0.

    Args:
        task: An id of the benchmark, a mapping with the fields of a task, or a `Task`; drawn from the seed if omitted.
        seed: Episode seed, 0 to 2^63 - 1; it fixes all draws.
        prompt: Prompt type ("flawed:FLAW" for a certain flaw), or a rendered prompt.
        tools: "native": each tool of the library is a function; nothing has to be searched for, so the ceiling is V*.
            "discovery": the functions tool_search, tool_info, tool_call and finish. "listed": these, and all names.
        on_failure: Whether a call that failed returns its words, or raises `ToolFailed` with them.
        name: Who plays, for the record.
        environment: Law, end rules and all else about the environment; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        **options: Options of `EnvironmentSettings`, such as base=0.7, in place of those of `environment`. A `world` is
            played as its tasks are everywhere: nothing fails by chance unless a law is named.

    Raises:
        InvalidInputError: An argument is unusable.
        ExactLimitError: The task is too large to be solved exactly.

    Example:
        >>> from resilisim import open_session
        >>> with open_session("task_c64444cae27fab46", seed=4, prompt="optimal") as session:
        ...     print(session.call("file_operations_scanner").ok)
        ...     _ = session.finish("scanned")
        True
        >>> session.score["level"], round(session.record()["regret"], 3)
        ('failure', 0.67)
    """
    session_options: dict[str, Any] = {**options, "tools": tools, "protocol": "native"}
    world = session_options.pop("world", None)
    settings = (environment or EnvironmentSettings()).with_options(**session_options)
    if world is not None:
        settings = settings.in_world(world, options)
    env = _environment(settings, library).twin()
    _, info = env.reset(seed=seed, options={} if task is None else {"task": task})
    judging = Judging()
    record = functools.partial(_session_record, judging, name)
    return Session(env, info["task"], prompt, seed, observers=[judging], record=record, on_failure=on_failure)


def _session_record(judging: Judging, name: str, session: Session) -> EpisodeRecord:
    record = judging.record(name)
    record["agent"] = agent_part(session, "session")
    record["privileged"] = session.oracle_was_asked
    return record


@functools.lru_cache(maxsize=4)
def _environment(settings: EnvironmentSettings, library: ToolLibrary | None) -> ConversationEnv:
    """Return an environment; its planner and its prompts are costly, and sessions follow each other."""
    return ConversationEnv(settings, library=library)


def _what_happened(info: Mapping[str, Any], execution: Mapping[str, Any]) -> Happened:
    """Return what an execution came to, as the environment tells it."""
    happened = Happened(
        attempt=execution["attempt"],
        success=execution["success"],
        error=execution["error"],
        success_probability=execution["success_probability"],
        real=bool(execution.get("real")),
        forced=bool(execution.get("forced")),
    )
    if "result" in info:
        happened["result"] = info["result"]
    if "seconds" in info:
        happened["seconds"] = info["seconds"]
    return happened


def _problem_told(info: Mapping[str, Any]) -> str | None:
    """Return why a message was not obeyed, as the agent was told; None if there was nothing to say."""
    is_refused = info["event"] in ("rejected", "format_error", "agent_error")
    return first_problem(info.get("problems", ())) if is_refused else None
