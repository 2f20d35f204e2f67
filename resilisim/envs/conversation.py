"""Conversation-v0: the environment as a language model sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import gymnasium
import numpy as np

from resilisim.chat import ToolCall
from resilisim.envs import feedback
from resilisim.envs.conversation_picture import scene_of
from resilisim.envs.protocol.message_reader import read_call, read_native, read_text
from resilisim.envs.protocol.native_messages import (
    AssistantMessage,
    call_ids,
    call_text,
    decode_native,
    native_answers,
    native_text,
    presentable,
)
from resilisim.envs.protocol.native_tools import native_tools, tool_functions
from resilisim.envs.rendering import Pixels, draw
from resilisim.envs.settings import JUDGED_REWARDS, EnvironmentSettings, OptionsButPlanner
from resilisim.envs.text_space import UnicodeText
from resilisim.errors import InvalidInputError, check_integer, unknown_name
from resilisim.seeding import MAX_SEED
from resilisim.simulator import Episode, Event, Message, Problem, build_problem
from resilisim.simulator.draws import KEYED, Draws
from resilisim.simulator.exact import Judge
from resilisim.simulator.exact.values import Values
from resilisim.simulator.goal import Goal, world_goal
from resilisim.simulator.law import Law
from resilisim.simulator.messages import STOP
from resilisim.simulator.scoring import graded_score, score_episode
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.searches import Searches, searches_needed
from resilisim.tasks.sources import resolve_task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import ToolHit, default_retriever
from resilisim.tool_library.tool import DEPENDENCY_ERROR
from resilisim.workflows.flaws.flaw import FlawRefusal
from resilisim.workflows.flaws.perturber import Program
from resilisim.workflows.planner import Planner, ReferencePlanner, resolve_planner
from resilisim.workflows.prompts import (
    FINISH_FORMS,
    FLAWED,
    PLANNED_PROMPT_TYPES,
    Prompt,
    parse_prompt_choice,
    render_prompt,
)
from resilisim.workflows.workflow import Workflow
from resilisim.worlds.base import Grade, Workspace, World, graded, load_world, opened, world_task

MAX_MESSAGE_LENGTH = 1_000_000
_SURELY_SHORT = MAX_MESSAGE_LENGTH // 13  # characters of a call, each of which JSON writes as at most 12
MAX_OBSERVATION_LENGTH = 1_000_000
MAX_WORLD_OBSERVATION_LENGTH = 100_000_000  # what tools really return may be huge
SEARCH_RESULTS = 5
# Scripted policies and trained ones send the same few messages again and again; reading is a function of the text.
CACHED_MESSAGE_LENGTH = 2000
KEPT_PROMPTS = 256  # episodes of a task follow each other

# What a picture says of the statuses of a state, in their order.
_HELPERS = (  # attributes that copies make anew
    "world",
    "_workspace",
    "_perturber",
    "_search_many",
    "_read_cached",
    "_problem_cached",
    "_prompt_cached",
    "searches_needed",
)

Search = Callable[[str, int], Sequence[ToolHit]]
Step = tuple[str, float, bool, bool, dict[str, Any]]


class ConversationEnv(gymnasium.Env[str, str]):
    """A multi-turn conversation in which an agent searches, inspects and executes unreliable tools to do a task.

    **Actions.** One assistant message a step, a text of at most 1,000,000 characters. Text protocol:
    `<tool_search>query</tool_search>`, `<tool_info>name</tool_info>`, `<tool_call>name {"parameter":
    value}</tool_call>` (parameters may be left out), or, without any of these, `<finish/>`. The first tag counts.
    Where the law has a part in which waiting can help, `<wait/>` (function `wait`) lets a turn pass.
    Native protocol: an OpenAI-style assistant message (`content`, `tool_calls`), as JSON text or as a mapping;
    `env.unwrapped.native_tools()` are the functions to offer to the model.

    **Observations.** Text: the prompt at reset, then the reply to the last message. Native: a JSON list of the messages
    that answer it (`role` is "tool" with the call's id, or "user").

    **Start.** `reset(seed=S, options={"task": T, "prompt": P})`. T is an id of the benchmark, a mapping with the task
    fields, or a `Task`; without it a benchmark task is drawn from the seed. P is a prompt type, for flawed prompts also
    "flawed:FLAW:SEVERITY:METHOD" with as many of these names as are wanted, or a rendered `Prompt`.
    The seed fixes all luck of the episode; which prompt is shown does not change it.

    **Rewards.** `reward="success"`: 1.0 on the step that ends in full success, otherwise 0.0. `"value"`: V*(s') - V*(s)
    of each message, where V* is the highest probability of full success; adds up to outcome - V*(start). `"advantage"`:
    Q*(s, a) - V*(s), minus the regret of each message, which no luck changes. All three rank agents the same; the
    latter two need a task that can be solved exactly (`ExactLimitError` at reset). Records do not depend on it.

    **Termination.** Completion signal; the closing message after the last turn; too many failed executions in a row;
    the same unproductive message too many times in a row. Turns are part of the task, so running out is termination;
    nothing is ever truncated.

    **Info.** Always: `instance_id`, `task_type`, `prompt_type`, `planner`, `protocol`, `parameters` (how they are
    checked), `turn` (messages sent), `turns_left`, `words` (the prompt, or what came of the message), `progress` (a
    `reply.Progress`, how far the episode is, which an observation says behind the words; not at reset, nor in the terse
    style), `event` (kind of the last message: execute, search, info,
    format_error, rejected, finish, stop, wait, agent_error; absent at reset). Under the native protocol: `messages`,
    those that the observation lists. At reset: `work`, the
    prompt without what it says about finding and calling tools. At reset under the native protocol:
    `functions`, those that can be called (`native_tools`); under any, where an agent can wait: `offers_wait`; in the
    terse style: `terse`. After a search: `search`, a list of `{name, score}`. After an info: `tool_info`. After a
    rejected call or format error: `problems`. After an execution: `execution`, `{tool, success, error,
    success_probability, attempt, output}` with `attempt` from 1 and `output` None unless it succeeded, and
    `dependency_problems` if its error is DEPENDENCY_ERROR; in worlds `real` is True where the tool itself failed;
    `forced` is True where the settings force what it brings. Under a law whose errors mean what they say, after any
    other error: `error_kind` ("transient", "input" or "access", and then `opened_by`, the tools that open what is
    closed); under one with latency: `seconds`. In worlds `answers` is True: completion is signalled with an answer;
    where the prompt lists the tools, `listed` has them as functions at reset; and `fails_by_chance` says there whether
    anything fails by chance. At the end: `score`. Not for ordinary policies (`public_info` takes them out):
    `instance_id`, `task`, `required_tools`, `seed`, `problem`, `state`, `message`, `score`, `flaw` (what is wrong with
    the plan in the prompt, or None), `result` (what an execution brought under a law with parts), `judgement` (what a
    message was worth, a `simulator.exact.judging.Judgement`, where messages are judged), and the probability, `real`
    and `forced` in `execution`; a flawed prompt is "optimal" to them.

    **Arguments.** See below, and `EnvironmentSettings`. **Source.** ResiliBench (seed papers), sections 4.1, A, B.3 and
    B.4. **Version history.** v0.

        >>> from resilisim.envs import ConversationEnv
        >>> env = ConversationEnv(base=0.7, protocol="native")
        >>> observation, info = env.reset(seed=0)
        >>> info["turns_left"]
        10

    Args:
        settings: Law, end rules, planner, protocol and all other options; the benchmark's if omitted.
        prompt: Prompt type of episodes whose reset names none.
        planner: Planner object, or name as in `resolve_planner`, in place of the one of the settings.
        library: Tool library; the default one if omitted.
        search: What answers searches: "semantic", "lexical", or a function, `search(query, k)`; as the settings say if
            omitted.
        render_mode: `ansi` (the last observation), `rgb_array` (a picture, `rendering`) or None.
        **options: Options of `EnvironmentSettings`, in place of those of the settings.
    """

    metadata = {  # noqa: RUF012  (Gymnasium declares it as it is)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 1,
    }

    def __init__(
        self,
        settings: EnvironmentSettings | None = None,
        *,
        prompt: str = "baseline",
        planner: Planner | str | None = None,
        library: ToolLibrary | None = None,
        search: Search | str | None = None,
        render_mode: str | None = None,
        **options: Unpack[OptionsButPlanner],
    ) -> None:
        parse_prompt_choice(prompt)
        settings = (settings or EnvironmentSettings()).with_options(**options)
        if isinstance(search, str):
            settings, search = settings.with_options(search=cast("Any", search)), None
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise unknown_name("render mode", render_mode, self.metadata["render_modes"])
        self.settings = settings
        self.world = None if settings.world is None else load_world(settings.world)
        self.library = _check_library(library, self.world)
        self.law = settings.failure_model()
        self._fails_by_chance = self.law != Law(base=1.0, not_executed=1.0, failed=1.0, history=1.0) or any(
            tool.success_probability not in (None, 1.0) for tool in self.library
        )
        self.rules = settings.rules()
        self._draws = settings.draws(self.library) or KEYED
        self.protocol = settings.protocol
        self.tools = settings.tools
        form = "answer" if self.world is not None and settings.calling == "text" else settings.calling
        self._finish = FINISH_FORMS[form]
        answers = self.world is not None
        self._functions = (
            tool_functions(self.library, settings.parameters, answers, settings.offers_wait)
            if settings.tools == "native"
            else native_tools(answers, settings.offers_wait)
        )
        # In worlds the tools that the prompt lists, which agents may then have as tools of their own.
        self._listed = (
            tool_functions(self.library, settings.parameters, answers, settings.offers_wait)
            if answers and settings.tools == "listed"
            else None
        )
        self._offered = tuple(entry["function"]["name"] for entry in self._functions)
        self.render_mode = render_mode
        self.action_space = UnicodeText(MAX_MESSAGE_LENGTH)
        self._longest = MAX_OBSERVATION_LENGTH if self.world is None else MAX_WORLD_OBSERVATION_LENGTH
        self.observation_space = UnicodeText(self._longest)
        self._default_prompt = prompt
        if self.world is not None and (planner is None or isinstance(planner, str)):
            planner = ReferencePlanner(self.library, self.law, self.rules)
        elif planner is None or isinstance(planner, str):
            planner = resolve_planner(planner or settings.planner, self.library, settings.planning_law(), self.rules)
        self._planner = planner
        self._search = search
        self._make_helpers()
        self._generator: np.random.Generator | None = None
        self._task: Task | None = None
        self._workspace: Workspace | None = None
        self._episode: Episode | None = None
        self._judge: Judge | None = None
        self._prompt: Prompt | None = None
        self._prompt_was_given = False
        self._seed = 0
        self._observation = ""
        self._said = ""  # the last answer, in words
        self._succeeded = False

    def _make_helpers(self) -> None:
        """Make what follows from the options, or only saves time (`_HELPERS`)."""
        self._perturber = self.settings.perturber(self.library)
        self._search_many = self.settings.search_many(self.library)
        self._read_cached = functools.lru_cache(maxsize=4096)(self._read)
        self._problem_cached = functools.lru_cache(maxsize=KEPT_PROMPTS)(self._make_problem)
        self._prompt_cached = functools.lru_cache(maxsize=KEPT_PROMPTS)(self._make_prompt)
        self.searches_needed = functools.lru_cache(maxsize=KEPT_PROMPTS)(self._searches_needed)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _HELPERS}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self.world = None if self.settings.world is None else load_world(self.settings.world)
        self._workspace = None
        self._make_helpers()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode, and return the prompt and the info of the start.

        Args:
            seed: Episode seed, 0 to 2^63 - 1; drawn from the environment's generator if omitted.
            options: `task` and `prompt`, see the class; an InvalidInputError tells what does not exist.
        """
        if seed is not None:
            seed = check_integer("seed", seed, 0, MAX_SEED)
            self._np_random, self._np_random_seed = None, seed
        options = options or {}
        for name in options:
            if name not in ("task", "prompt"):
                raise unknown_name("reset option", name, ("task", "prompt"))
        self._seed = seed if seed is not None else int(self.np_random.integers(2**31))
        task = self._resolve_task(options.get("task"))
        prompt = options.get("prompt", self._default_prompt)
        self._prompt_was_given = isinstance(prompt, Prompt)
        self._prompt = prompt if isinstance(prompt, Prompt) else self.prompt(task, prompt)
        problem = self.problem(task)
        self._judge = Judge(problem) if self.settings.reward in JUDGED_REWARDS else None
        self._close_workspace()
        if self.world is not None:
            self._workspace = opened(self.world, task, self._seed)
        self._task = task
        given = self.settings
        told = (task.instance_id, self._seed, given.salt, given.payload, given.errors)
        self._episode = Episode(problem, *told, self._workspace, self._draws)
        self._observation = presentable(self._prompt.text, self._longest)
        work = self._prompt.text.strip() if self._prompt.work is None else self._prompt.work
        said = {"words": self._observation, "work": presentable(work, self._longest)}
        return self._observation, self._info(None, said)

    def judged(self) -> Values:
        """Have the messages of this episode judged (`judgement` in infos), and return what they are judged by.

        Where they are paid by their worth (`EnvironmentSettings.reward`) they are judged anyway.

        Raises:
            ExactLimitError: The task is too large to be solved exactly.
        """
        if self._episode is None:
            raise gymnasium.error.ResetNeeded("call reset first")
        self._judge = self._judge or Judge(self._episode.problem)
        return self._judge.values

    @property
    def _np_random(self) -> np.random.Generator | None:
        """What Gymnasium draws by, made of the seed when it is asked for: that took a third of a reset."""
        if self._generator is None and self._np_random_seed is not None:
            self._generator, _ = gymnasium.utils.seeding.np_random(self._np_random_seed)
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator | None) -> None:
        self._generator = generator

    def problem(self, task: Task) -> Problem:
        """Return what has to be done in a task, under law and end rules."""
        goal = self.settings.goal_of(task.required_tools) if self.world is None else world_goal(task)
        return self._problem_cached(goal)

    def _make_problem(self, goal: Goal) -> Problem:
        return build_problem(self.library, goal, self.law, self.rules, self.world is not None)

    def close(self) -> None:
        """Release what the last episode worked on."""
        self._close_workspace()
        super().close()

    def _close_workspace(self) -> None:
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            workspace.close()

    def step(self, action: AssistantMessage) -> Step:
        """Send one assistant message: a text, or under the native protocol also a mapping or a single call.

        A mapping is what its JSON text is, and a call what the message is that makes it and says nothing else.
        """
        if not isinstance(action, str):
            if self.protocol != "native" or not isinstance(action, ToolCall | Mapping):
                raise InvalidInputError(f"an action of type {type(action).__name__}: expected a text")
            if isinstance(action, ToolCall):
                return self._call(action)
            action = native_text(action)
        if len(action) > MAX_MESSAGE_LENGTH:
            return self._too_long(action)
        if self.protocol == "native":
            message = decode_native(action)
            return self._apply(self._read_native(message), call_ids(message))
        read = self._read_cached if len(action) <= CACHED_MESSAGE_LENGTH else self._read
        return self._apply(read(action), [])

    def _call(self, call: ToolCall) -> Step:
        """Let one native call happen; its text is only made where it may be too long."""
        if len(call.id) + len(call.name) + len(call.arguments) > _SURELY_SHORT:
            text = call_text(call)
            if len(text) > MAX_MESSAGE_LENGTH:
                return self._too_long(text)
        message = read_call(call, self.library, self.settings.parameters, self._offered)
        return self._apply(message, [call.id])

    def _too_long(self, action: str) -> Step:
        problem = f"the message has {len(action):,} characters: expected at most {MAX_MESSAGE_LENGTH:,}"
        return self._apply(Message("format_error", problems=(problem,), text=action[:200]), [])

    def prompt(self, task: Task, prompt: str) -> Prompt:
        """Return the prompt that an episode of a task begins with, unless the task's plan cannot carry its flaw."""
        return self._prompt_cached(task, prompt)

    def _make_prompt(self, task: Task, prompt: str) -> Prompt:
        choice = parse_prompt_choice(prompt)
        workflow = self._planner.plan(task) if choice.type in PLANNED_PROMPT_TYPES else None
        flaw: Mapping[str, Any] | None = None
        if workflow is not None and choice.type == FLAWED:
            program = None if self.world is None else Program.of(workflow, self.library)
            if program is None:
                flawed = choice.flawed(self._perturber, workflow, task, self.settings.prompt_style)
            else:
                steps = replace(task, required_tools=program.workflow.tools)
                flawed = choice.flawed(self.settings.perturber(program.library), program.workflow, steps)
            if isinstance(flawed, FlawRefusal):
                raise InvalidInputError(f"prompt {prompt!r}: {flawed}")
            flawed = flawed if program is None else program.with_flaw(flawed)
            workflow, flaw = flawed.workflow, flawed.flaw_mapping()
        return replace(self.render_prompt(task, choice.type, workflow), type=prompt, flaw=flaw)

    def prompt_text(self, finish: str) -> str:
        """Return the prompt of the episode for whoever signals completion in another way, in words.

        A rendered prompt that was given to `reset` is as it was given.
        """
        if self._prompt is None or self._task is None:
            raise gymnasium.error.ResetNeeded("call reset first")
        if self._prompt_was_given:
            return self._prompt.text
        prompt_type = parse_prompt_choice(self._prompt.type).type
        return self.render_prompt(self._task, prompt_type, self._prompt.workflow, finish).text

    def render_prompt(
        self, task: Task, prompt_type: str, workflow: Workflow | None, finish: str | None = None
    ) -> Prompt:
        """Return a prompt as this environment words it, of a type without the name of a flaw, with its plan if any.

        `finish` is how completion is signalled, in words, if not as the protocol has it.
        """
        return render_prompt(
            task,
            prompt_type,
            workflow,
            self.library,
            tools_listed=self.settings.tools == "listed",
            rules=self.rules,
            protocol=self.settings.calling,
            style=self.settings.prompt_style,
            parameters=self.settings.parameters,
            answers=self.world is not None,
            offers_wait=self.settings.offers_wait,
            once=self.settings.once,
            finish=self._finish if finish is None else finish,
        )

    def _searches_needed(self, task: Task) -> Searches:
        """Return how many searches with clauses of its description show every tool of a task, as searches answer here.

        Worlds tell their tools, so nothing is said of searches there.
        """
        if self.world is not None:
            return Searches(None)
        search = self._search
        many = self._search_many if search is None else lambda queries, k: [search(query, k) for query in queries]
        return searches_needed(task, self.library, many)

    def twin(self, draws: Draws | None = None) -> ConversationEnv:
        """Return an environment with the same options in which another episode can be played at the same time.

        What is costly is shared: the library, the planner, the prompts made so far. `draws` are where those of its
        episodes come from, as here if omitted.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        if draws is not None:
            twin._draws = draws
        twin._task = twin._episode = twin._prompt = twin._judge = twin._workspace = None
        return twin

    def fork(self, draws: Draws) -> ConversationEnv:
        """Return a twin in the middle of the episode, which goes on by itself; none of a world."""
        fork, episode, judge = self.twin(draws), self._episode, self._judge
        fork._task, fork._prompt = self._task, self._prompt
        fork._episode, fork._judge = episode and episode.fork(draws), judge and judge.fork()
        return fork

    def stop(self) -> Step:
        """End the episode because the agent stopped by itself or hit a cap of its own."""
        return self._apply(STOP, [])

    def lose(self, why: str) -> Step:
        """End the episode as lost because the agent broke or was given up; `why` is kept for the record."""
        return self._apply(Message("agent_error", problems=(why,)), [])

    def native_tools(self) -> list[dict[str, Any]]:
        """Return the functions that can be called under the native protocol, with JSON Schemas."""
        return self._functions

    def render(self) -> str | Pixels | None:
        """Return the last observation (`ansi`) or a picture, uint8 (600, 960, 3) (`rgb_array`)."""
        if self.render_mode == "rgb_array":
            if self._episode is None or self._task is None:
                raise gymnasium.error.ResetNeeded("call reset before render")
            return draw(scene_of(self._episode, self._task, self._seed, self._succeeded, self._said))
        return self._observation if self.render_mode == "ansi" else None

    def _apply(self, message: Message, ids: list[str]) -> Step:
        if self._episode is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        before = self._episode.state
        event = self._episode.apply(message)
        words, extra = self._reply(event)
        progress = feedback.progress(self._episode.problem, self._episode.state, message.ignored, self._finish)
        if self.settings.prompt_style == "terse":
            words, ending = feedback.terse_reply(event, extra, self._episode.problem, self._episode.state), ""
        else:
            ending = progress.text()
            extra["progress"] = progress
        words = extra["words"] = presentable(words, self._longest - len(ending) - 2)
        text = self._said = f"{words}\n\n{ending}" if words and ending else words or ending
        if self.protocol == "native":
            ids = [presentable(call_id, len(call_id)) for call_id in ids]
            extra["messages"], text = native_answers(text, ids, self._longest)
        self._observation = text
        terminated = self._episode.ended_by is not None
        info = self._info(event, extra)
        success = self._succeeded = terminated and info["score"]["level"] == "full_success"
        if terminated:
            self._close_workspace()
        reward = float(success)
        if self._judge is not None:
            graded = None if self.world is None else int(success)
            after, refused = self._episode.state, event.is_real_failure
            judgement = info["judgement"] = self._judge.judge(before, event.message, after, graded, refused)
            if self.settings.reward in JUDGED_REWARDS:
                reward = judgement.reward(self.settings.reward)
        return self._observation, reward, terminated, False, info

    def _read(self, text: str) -> Message:
        mode, answers = self.settings.parameters, self.world is not None
        return read_text(text, self.library, mode, answers, self.settings.offers_wait)

    def _read_native(self, message: Mapping[str, Any]) -> Message:
        return read_native(message, self.library, self.settings.parameters, self._offered, self.world is not None)

    def _reply(self, event: Event) -> tuple[str, dict[str, Any]]:
        message = event.message
        if event.executed:
            extra: dict[str, Any] = {
                "execution": {
                    "tool": event.tool,
                    "success": event.success,
                    "error": event.failure.code if event.failure else None,
                    "success_probability": event.success_probability,
                    "attempt": event.attempt,
                    "output": event.output if event.success else None,
                }
            }
            if event.is_real_failure:
                extra["execution"]["real"] = True
            if event.forced:
                extra["execution"]["forced"] = True
            if event.failure is not None and event.failure.code == DEPENDENCY_ERROR and not event.failure.real:
                extra["dependency_problems"] = {
                    "not_executed": list(event.failure.not_executed),
                    "failed": list(event.failure.failed),
                }
            elif event.failure is not None:
                extra |= self._meaning(event.failure.code)
            if event.result is not None:
                extra["result"] = event.result
            if event.seconds is not None:
                extra["seconds"] = event.seconds
            return feedback.execution_reply(event), extra
        if message.kind == "agent_error":
            return "", {"problems": list(message.problems)}
        if event.turn > self.rules.max_turns:
            return "", {}
        if message.kind == "search":
            hits = self._find(message.query or "")
            found = [(self.library[hit.name], hit.score) for hit in hits]
            reply = feedback.search_reply(message.query or "", found, self.settings.search_detail)
            return reply, {"search": [{"name": hit.name, "score": hit.score} for hit in hits]}
        if message.kind == "info":
            name = message.tool or ""
            tool = None if message.problems else self.library[name]
            reply = feedback.info_reply(name, tool, message.problems)
            return reply, {"tool_info": feedback.tool_facts(tool)} if tool else {"problems": list(message.problems)}
        if message.kind == "rejected":
            known = message.tool is None or message.tool in self.library
            reply = feedback.rejection_reply(message.tool or "tool_call", message.problems, known)
            return reply, {"problems": list(message.problems)}
        if message.kind == "format_error":
            reply = feedback.format_reply(message.problems, self.settings.calling, self.settings.offers_wait)
            return reply, {"problems": list(message.problems)}
        if message.kind == "wait":
            return feedback.WAITED, {}
        return "", {}

    def _meaning(self, code: str) -> dict[str, Any]:
        """Return what an error asks for, where the law says that errors mean what they say."""
        problem = self._episode.problem if self._episode is not None else None
        if problem is None or problem.dynamics.numbers.law.error_kinds is None:
            return {}
        kinds = problem.dynamics.numbers.law.error_kinds
        if code not in kinds.access_codes:
            return {"error_kind": "input" if code in kinds.input_codes else "transient"}
        openers = [facts.name for facts in problem.dynamics.numbers.facts if facts.is_opener]
        return {"error_kind": "access", "opened_by": openers}

    def _find(self, query: str) -> Sequence[ToolHit]:
        if self._search is not None:
            return self._search(query, SEARCH_RESULTS)
        many = self._search_many or default_retriever(self.library).search_many
        return many([query], SEARCH_RESULTS)[0]

    def _info(self, event: Event | None, extra: dict[str, Any]) -> dict[str, Any]:
        if self._episode is None or self._task is None or self._prompt is None:
            raise gymnasium.error.ResetNeeded("call reset first")
        state, problem = self._episode.state, self._episode.problem
        is_out_of_time = problem.dynamics.is_out_of_time(state)
        info: dict[str, Any] = {
            "instance_id": self._task.instance_id,
            "task": self._task,
            "task_type": self._task.task_type,
            "prompt_type": self._prompt.type,
            "planner": self._prompt.planner,
            "flaw": self._prompt.flaw,
            "protocol": self.protocol,
            "parameters": self.settings.parameters,
            "turn": len(self._episode.events),
            "turns_left": 0 if is_out_of_time else self.rules.max_turns - state.turns_used,
            "required_tools": list(self._task.required_tools),
            "seed": self._seed,
            "problem": problem,
            "state": state,
        }
        if self.world is not None:
            info["answers"] = True
        if event is not None:
            info |= {"event": event.message.kind, "message": event.message}
        else:
            if self.protocol == "native":
                info["functions"] = self._functions
            if self._listed is not None:
                info["listed"] = self._listed
            if self.settings.offers_wait:
                info["offers_wait"] = True
            if self.world is not None:
                info["fails_by_chance"] = self._fails_by_chance
            if self.settings.prompt_style == "terse":
                info["terse"] = True
        info |= extra
        if state.ended_by is not None:
            events = [past for past in self._episode.events if past.tool is not None]
            executions = [(past.tool or "", bool(past.success), past.result) for past in events]
            outputs = self.library.outputs.intersection(self._task.required_tools)
            law, ran_once = problem.law.to_mapping(), problem.dynamics.has_run_well(state)
            asked = problem.goal, outputs, self._task.task_type
            score = score_episode(*asked, executions, state.ended_by, law, ran_once)
            if self.world is None:
                info["score"] = score.to_mapping()
            else:
                info["score"] = graded_score(score, self.grade(self._episode.events[-1].message.answer))
        return info

    def grade(self, answer: str | None) -> Grade:
        """Return what a world makes of an answer, given now; WorldFailed if it breaks."""
        if self.world is None or self._task is None or self._episode is None:
            raise InvalidInputError("only an episode in a world can be graded: expected a world, and reset")
        calls = [event.done_call() for event in self._episode.events if event.executed]
        return graded(self.world, self._task, answer, calls)

    def _resolve_task(self, task: object) -> Task:
        if self.world is not None:
            return resolve_world_task(task, self.world, self.np_random)
        if task is None:
            if self.library != default_library():
                raise InvalidInputError(
                    'no task was given, and the shipped tasks need the default library: expected options={"task": ...}'
                )
            tasks = benchmark_tasks()
            return tasks[int(self.np_random.integers(len(tasks)))]
        return resolve_task(task, self.library)


def resolve_world_task(task: object, world: World, draws: np.random.Generator) -> Task:
    """Return the task of a world that an id, a mapping or a `Task` stands for; None draws one."""
    if task is None:
        tasks = world.tasks()
        return tasks[int(draws.integers(len(tasks)))]
    return world_task(world, task) if isinstance(task, str) else resolve_task(task, world.library)


def _check_library(library: object, world: World | None = None) -> ToolLibrary:
    if world is not None:
        if library is not None and library != world.library:
            raise InvalidInputError(f"world {world.name!r} has its own tool library: expected no other one")
        return world.library
    if library is None:
        return default_library()
    if not isinstance(library, ToolLibrary):
        kind = type(library).__name__
        raise InvalidInputError(f"library is a {kind}: expected a ToolLibrary, such as load_library(path) returns")
    return library
