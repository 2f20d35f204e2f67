"""The arguments of a run as people write them, checked: what would fail in the middle of a run is refused before it.

Each becomes plain values here, or is refused in one line. `RunPlan.of` puts them together.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from resilisim.at_work import AT_WORK
from resilisim.bounds import Count, Seed, checked
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import ExactLimitError, InvalidInputError, shown_value, unknown_name
from resilisim.evaluation.episode.texts import RECORD_TEXTS, RecordTexts
from resilisim.evaluation.run.contestants import MCP_PLAYER, AgentSpec, Contestant, PolicySpec
from resilisim.policies.function_agent import AGENT_PREFIX
from resilisim.policies.registry import COMMAND_PREFIX, alternatives
from resilisim.simulator.exact.optimum import check_solvable as check_problem_solvable
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION, find_task
from resilisim.tasks.sources import read_tasks
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.prompts import FLAWED, PLANNED_PROMPT_TYPES, PROMPT_TYPES, parse_prompt_choice
from resilisim.worlds.base import load_world, names_world, reference_calls, world_task, world_tasks

# A task in any of its forms: the id of a benchmark task, a mapping with the fields of a task, a task.
TaskSpec: TypeAlias = "str | Mapping[str, Any] | Task"


def check_policies(policies: object) -> tuple[PolicySpec, ...]:
    """Return one policy or several as a tuple; whether each can be made is seen when it is made.

    Values of an option with `|` between them make a policy of each.
    """
    is_one = isinstance(policies, str) or callable(policies) or hasattr(policies, "act")
    listed = [policies] if is_one else _listed("policies", policies, "a policy or a list of policies")
    if not listed:
        raise InvalidInputError("no policy was given: expected at least one")
    for policy in listed:
        # A policy's state would travel between episodes and processes in ways that nobody can repeat.
        is_made_already = not isinstance(policy, type) and hasattr(policy, "act")
        if is_made_already or not (isinstance(policy, str) or callable(policy)):
            raise InvalidInputError(
                f"policy {policy!r:.80}: expected a name, module:attribute, or a class or function that returns a "
                "policy"
            )
    every = [each for policy in listed for each in (alternatives(policy) if isinstance(policy, str) else [policy])]
    return cast("tuple[PolicySpec, ...]", tuple(every))


def check_agents(agents: object) -> tuple[PolicySpec, ...]:
    """Return one agent or several as policies: functions of a session, or module:function of some."""
    is_one = isinstance(agents, str) or callable(agents)
    listed = [agents] if is_one else _listed("agents", agents, "a function of a session or a list of them")
    for agent in listed:
        if not (isinstance(agent, str) or callable(agent)) or isinstance(agent, type):
            raise InvalidInputError(f"agent {agent!r:.80}: expected a function of a session, or module:function")
    return tuple(
        AgentSpec(cast("Any", agent)) if not isinstance(agent, str) else _named_agent(agent) for agent in listed
    )


def _named_agent(text: str) -> str:
    return text if text.startswith((AGENT_PREFIX, COMMAND_PREFIX)) else AGENT_PREFIX + text


def check_prompts(prompts: object) -> tuple[str, ...]:
    """Return one prompt type or several as a tuple of different ones."""
    listed = [prompts] if isinstance(prompts, str) else _listed("prompts", prompts, "a prompt type or a list of them")
    if not listed:
        raise InvalidInputError("no prompt type was given: expected at least one of " + ", ".join(PROMPT_TYPES))
    types: list[str] = []
    for prompt in listed:
        if not isinstance(prompt, str):
            raise unknown_name("prompt type", prompt, PROMPT_TYPES)
        parse_prompt_choice(prompt)
        if prompt in types:
            raise InvalidInputError(f"prompt type {prompt!r} was given twice: expected each once")
        types.append(prompt)
    return tuple(types)


def check_seeds(seeds: object) -> tuple[int, ...]:
    """Return seeds 0, 1, ... for a number, or the given seeds, which must differ."""
    expected = "the number of seeds or a list of seeds"
    if isinstance(seeds, str):
        raise InvalidInputError(f"seeds is {seeds!r:.60}: expected {expected}")
    if _is_integer(seeds):
        return tuple(range(checked(Count, "seeds", seeds)))
    listed = [checked(Seed, "seed", seed) for seed in _listed("seeds", seeds, expected)]
    if not listed or len(set(listed)) != len(listed):
        raise InvalidInputError(f"seeds are {listed!r:.80}: expected at least one, each once")
    return tuple(listed)


def check_shard(shard: object, num_tasks: int) -> slice:
    """Return which tasks "i/n" means, all of them for None; parts without a task are refused."""
    if shard is None:
        return slice(None)
    match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", shard) if isinstance(shard, str) else None
    if match is None:
        raise InvalidInputError(f"shard is {shard!r:.60}: expected i/n, such as '1/4'")
    number, count = int(match[1]), int(match[2])
    if not 1 <= number <= count:
        raise InvalidInputError(f"shard is {shard!r}: expected a number from 1 to {max(count, 1)} before the slash")
    if number > num_tasks:
        raise InvalidInputError(f"shard is {shard!r}: expected at most {num_tasks} parts, one for each task of the run")
    return slice(number - 1, None, count)


def in_world(
    environment: EnvironmentSettings, tasks: object, chosen: Iterable[str] = ()
) -> tuple[EnvironmentSettings, Any]:
    """Return the environment that tasks are played in, and the tasks: those of a world are played in that world.

    `chosen` are the names of options that somebody gave, whatever their value.

    Raises:
        InvalidInputError: The tasks are of another world than the environment.
    """
    if not (isinstance(tasks, str) and names_world(tasks)):
        return environment, tasks
    name, tasks_of_world = world_tasks(tasks)
    if environment.world not in (None, name):
        raise InvalidInputError(f"tasks {tasks!r} are of another world than the environment's: {environment.world!r}")
    if environment.world is None:
        environment = environment.in_world(name, set(chosen))
    return environment, list(tasks_of_world)


def library_in(environment: EnvironmentSettings, library: ToolLibrary | None) -> ToolLibrary:
    """Return the library of an environment: that of its world, or the one that was given, or the default one.

    Raises:
        InvalidInputError: It is not a library, or one was given to a world, which has its own.
    """
    if library is not None and not isinstance(library, ToolLibrary):
        raise InvalidInputError(f"library is {shown_value(library)}: expected a ToolLibrary (`load_library` reads one)")
    if environment.world is None:
        return default_library() if library is None else library
    own = load_world(environment.world).library
    if library not in (None, own):
        raise InvalidInputError(f"world {environment.world!r} has its own tool library: expected no other one")
    return own


def check_tasks(tasks: object, library: ToolLibrary, world: str | None = None) -> list[Task]:
    """Return the tasks that an argument means: what `read_tasks` understands, or tasks in any of their forms.

    In a `world` a number means its first tasks, and ids are those of its tasks.

    Raises:
        InvalidInputError: It means none, a task does not fit the library, or two tasks have one id.
    """
    if world is not None and (isinstance(tasks, str) or _is_integer(tasks)):
        return list(world_tasks(world if tasks == BENCHMARK_VERSION else f"{world}:{tasks}")[1])
    if isinstance(tasks, str | Path) or _is_integer(tasks):
        return read_tasks(cast("Any", tasks), library)
    expected = "a number, a name, a file, or a list of ids, mappings or tasks"
    listed = [tasks] if isinstance(tasks, Task | Mapping) else _listed("tasks", tasks, expected)
    if not listed:
        raise InvalidInputError("no task was given: expected at least one")
    checked = [_check_task(task, library, f"tasks[{place}]", world) for place, task in enumerate(listed)]
    for name, count in Counter(task.instance_id for task in checked).items():
        if count > 1:
            raise InvalidInputError(f"task {name} was given twice: expected each instance_id once")
    return checked


def _check_task(task: object, library: ToolLibrary, where: str, world: str | None) -> Task:
    if isinstance(task, Mapping):
        return Task.from_mapping(task, library, where)
    if isinstance(task, str) and world is not None:
        return world_task(load_world(world), task)
    known = find_task(task) if isinstance(task, str) else task
    if not isinstance(known, Task):
        raise InvalidInputError(f"{where} is {task!r:.60}: expected an id, a mapping or a Task")
    for name in known.required_tools:
        if name not in library:
            raise unknown_name("tool", name, library.names, f"{where}, {known.instance_id}")
    return known


def check_record_texts(value: object) -> RecordTexts | None:
    """Return whose texts are kept; None leaves it to the kind of the policy."""
    if value is not None and value not in RECORD_TEXTS:
        raise unknown_name("record_texts", str(value), RECORD_TEXTS, "record_texts")
    return cast("RecordTexts | None", value)


def check_fails_by(
    environment: EnvironmentSettings,
    player: Contestant | None,
    agents: Sequence[PolicySpec],
    options: Mapping[str, Any],
) -> None:
    """Refuse another way than answers for failures to come where nobody plays over MCP.

    Raises:
        InvalidInputError: Nobody does.
    """
    ways = options.get("fails_by", environment.fails_by)
    programs = [each for each in agents if isinstance(each, str) and each.startswith(COMMAND_PREFIX)]
    if ways and not programs and (player is None or player.policy != MCP_PLAYER):
        raise InvalidInputError(
            f"fails_by is {shown_value(ways, 80)}: expected none, as nobody plays over MCP (--agent-command, or "
            "resilisim mcp serve)"
        )


def check_solvable(tasks: Sequence[Task], environment: ConversationEnv) -> None:
    """Refuse tasks of whose optimum nothing can be said, before a run begins; nothing is solved for it where it fits.

    Raises:
        ExactLimitError: The text names the task.
    """
    if environment.world is not None:
        for task in tasks:
            check_problem_solvable(environment.problem(task))
        return
    distinct = {task.required_tools: task for task in reversed(tasks)}
    for number, task in enumerate(distinct.values(), start=1):
        problem = environment.problem(task)
        try:
            with AT_WORK.about(f"{number:,} of {len(distinct):,}: {task.instance_id}"):
                check_problem_solvable(problem)
        except ExactLimitError as error:
            raise ExactLimitError(f"task {task.instance_id}: {error}") from error


def check_flaws(tasks: Sequence[Task], prompts: Sequence[str], environment: ConversationEnv) -> None:
    """Refuse prompts with a plan for tasks of a world that have none, and flaws that the plans of some cannot carry.

    Raises:
        InvalidInputError: The text says for how many tasks, and why for the first.
    """
    for prompt in prompts:
        kind = parse_prompt_choice(prompt).type
        without = [task for task in tasks if environment.world is not None and not reference_calls(task)]
        if kind in PLANNED_PROMPT_TYPES and without:
            raise InvalidInputError(
                f"prompt {prompt!r} holds a plan: {len(without):,} of {len(tasks):,} tasks have no reference solution "
                "to make one of; expected a prompt without a plan, such as baseline"
            )
        reasons = [] if kind != FLAWED else [reason for _, reason in _without_flaw(tasks, prompt, environment)]
        if reasons:
            raise InvalidInputError(
                f"{len(reasons):,} of {len(tasks):,} tasks have no such prompt: {reasons[0]}; "
                f"leave them out, or take {FLAWED!r}, which draws a flaw that each task can carry"
            )


def tasks_with_flaws(tasks: list[Task], prompts: Sequence[str], environment: ConversationEnv) -> list[Task]:
    """Return the tasks whose plans can carry the flaws of prompts; a warning says how many are left out.

    Raises:
        InvalidInputError: None can, or a prompt holds a plan and there is none (`check_flaws`).
    """
    for prompt in prompts:
        without = dict(_without_flaw(tasks, prompt, environment)) if parse_prompt_choice(prompt).type == FLAWED else {}
        if without and len(without) < len(tasks):
            count = f"{len(without):,} of {len(tasks):,} tasks cannot carry the flaw of prompt {prompt!r}"
            are = "is" if len(without) == 1 else "are"
            warnings.warn(f"{count} and {are} left out: {next(iter(without.values()))}", UserWarning, stacklevel=5)
            tasks = [task for task in tasks if task.instance_id not in without]
    check_flaws(tasks, prompts, environment)
    return tasks


def _without_flaw(tasks: Sequence[Task], prompt: str, environment: ConversationEnv) -> Iterator[tuple[str, str]]:
    """Yield each task whose plan cannot carry the flaw of a prompt, by its id, and why."""
    for task in tasks:
        try:
            environment.prompt(task, prompt)
        except InvalidInputError as error:
            yield task.instance_id, str(error)


def _is_integer(value: object) -> bool:
    try:
        operator.index(cast("Any", value))
    except TypeError:
        return False
    return not isinstance(value, bool)


def _listed(name: str, value: object, expected: str) -> list[object]:
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        return list(value)
    raise InvalidInputError(f"{name} is {value!r:.60}: expected {expected}")
