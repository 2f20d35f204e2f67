"""The arguments of `evaluate`, as people write them, turned into the plain values that a run consists of.

Whatever would fail in the middle of a run is refused here, in one line and before anything is written.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import MAX_COUNT, ExactLimitError, InvalidInputError, check_integer, unknown_name
from resilisim.evaluation.episode.texts import RECORD_TEXTS, RecordTexts
from resilisim.evaluation.run.contestants import PolicySpec
from resilisim.evaluation.run.plan import Shard
from resilisim.seeding import MAX_SEED
from resilisim.simulator import build_problem
from resilisim.simulator.exact.arena import build_arena
from resilisim.tasks import Task
from resilisim.tasks.benchmark import find_task
from resilisim.tasks.sources import read_tasks
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.prompt_choice import FLAWED, parse_prompt_choice
from resilisim.workflows.prompts import PROMPT_TYPES

# A task in any of its forms: the id of a benchmark task, a mapping with the fields of a task, a task.
TaskSpec: TypeAlias = "str | Mapping[str, Any] | Task"


def check_policies(policies: object) -> tuple[PolicySpec, ...]:
    """Return one policy or several as a tuple; whether each can be made is seen when it is made."""
    if isinstance(policies, str) or callable(policies) or hasattr(policies, "act"):
        return (_check_policy(policies),)
    chosen = _listed("policies", policies, "a policy or a list of policies")
    if not chosen:
        raise InvalidInputError("no policy was given: expected at least one")
    return tuple(_check_policy(policy) for policy in chosen)


def _check_policy(policy: object) -> PolicySpec:
    # A policy's state would travel between episodes and processes in ways that nobody can repeat.
    is_made_already = not isinstance(policy, type) and hasattr(policy, "act")
    if is_made_already or not (isinstance(policy, str) or callable(policy)):
        raise InvalidInputError(
            f"policy {policy!r:.80}: expected a name, module:attribute, or a class or function that returns a policy"
        )
    return cast("PolicySpec", policy)


def check_prompts(prompts: object) -> tuple[str, ...]:
    """Return one prompt type or several as a tuple of different ones."""
    chosen = [prompts] if isinstance(prompts, str) else _listed("prompts", prompts, "a prompt type or a list of them")
    if not chosen:
        raise InvalidInputError("no prompt type was given: expected at least one of " + ", ".join(PROMPT_TYPES))
    types: list[str] = []
    for prompt in chosen:
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
    number = _as_integer(seeds)
    if number is not None:
        return tuple(range(check_integer("seeds", number, 1, MAX_COUNT)))
    chosen: list[int] = []
    for seed in _listed("seeds", seeds, expected):
        value = _as_integer(seed)
        if value is None:
            raise InvalidInputError(f"seed {seed!r:.60}: expected a whole number")
        chosen.append(check_integer("seed", value, 0, MAX_SEED))
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidInputError(f"seeds are {chosen!r:.80}: expected at least one, each once")
    return tuple(chosen)


def check_shard(shard: object, num_tasks: int) -> Shard:
    """Return the part of a run that "i/n" means, the whole run for None.

    Raises:
        InvalidInputError: It means none, or a part without a task.
    """
    if shard is None:
        return Shard()
    found = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", shard) if isinstance(shard, str) else None
    if found is None:
        raise InvalidInputError(f"shard is {shard!r:.60}: expected i/n, such as '1/4'")
    number, count = int(found[1]), int(found[2])
    if not 1 <= number <= count:
        raise InvalidInputError(f"shard is {shard!r}: expected a number from 1 to {max(count, 1)} before the slash")
    if number > num_tasks:
        raise InvalidInputError(f"shard is {shard!r}: expected at most {num_tasks} parts, one for each task of the run")
    return Shard(number, count)


def check_tasks(tasks: object, library: ToolLibrary) -> list[Task]:
    """Return the tasks that an argument means: what `read_tasks` understands, or tasks in any of their forms.

    Raises:
        InvalidInputError: It means none, a task does not fit the library, or two tasks have one id.
    """
    number = _as_integer(tasks)
    if isinstance(tasks, str | Path):
        return read_tasks(tasks, library)
    if number is not None:
        return read_tasks(number, library)
    expected = "a number, a name, a file, or a list of ids, mappings or tasks"
    given = [tasks] if isinstance(tasks, Task | Mapping) else _listed("tasks", tasks, expected)
    if not given:
        raise InvalidInputError("no task was given: expected at least one")
    chosen = [_check_task(task, library, f"tasks[{place}]") for place, task in enumerate(given)]
    seen: set[str] = set()
    for task in chosen:
        if task.instance_id in seen:
            raise InvalidInputError(f"task {task.instance_id} was given twice: expected each instance_id once")
        seen.add(task.instance_id)
    return chosen


def _check_task(task: object, library: ToolLibrary, where: str) -> Task:
    if isinstance(task, Mapping):
        return Task.from_mapping(task, library, where)
    chosen = find_task(task) if isinstance(task, str) else task
    if not isinstance(chosen, Task):
        raise InvalidInputError(f"{where} is {task!r:.60}: expected an id, a mapping or a Task")
    for name in chosen.required_tools:
        if name not in library:
            raise unknown_name("tool", name, library.names, f"{where}, {chosen.instance_id}")
    return chosen


def check_record_texts(value: object) -> RecordTexts | None:
    """Return whose texts are kept; None leaves it to the kind of the policy."""
    if value is not None and value not in RECORD_TEXTS:
        raise unknown_name("record_texts", str(value), RECORD_TEXTS, "record_texts")
    return cast("RecordTexts | None", value)


def check_solvable(tasks: Sequence[Task], environment: ConversationEnv) -> None:
    """Refuse tasks whose exact optimum would be too large, without solving any.

    Raises:
        ExactLimitError: The text names the task.
    """
    checked: set[frozenset[str]] = set()
    for task in tasks:
        tools = frozenset(task.required_tools)  # the size of a problem does not depend on the order
        if tools in checked:
            continue
        checked.add(tools)
        try:
            build_arena(build_problem(environment.library, task.required_tools, environment.law, environment.rules))
        except ExactLimitError as error:
            raise ExactLimitError(f"task {task.instance_id}: {error}") from error


def check_flaws(tasks: Sequence[Task], prompts: Sequence[str], environment: ConversationEnv) -> None:
    """Refuse flawed prompts that the plans of some tasks cannot carry.

    Raises:
        InvalidInputError: The text says for how many tasks, and why for the first.
    """
    for prompt in prompts:
        if parse_prompt_choice(prompt).type != FLAWED:
            continue
        reasons = []
        for task in tasks:
            try:
                environment.prompt(task, prompt)
            except InvalidInputError as error:
                reasons.append(str(error))
        if reasons:
            raise InvalidInputError(
                f"{len(reasons):,} of {len(tasks):,} tasks have no such prompt: {reasons[0]}; "
                f"leave them out, or take {FLAWED!r}, which draws a flaw that each task can carry"
            )


def _as_integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(cast("Any", value))
    except TypeError:
        return None


def _listed(name: str, value: object, expected: str) -> list[object]:
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        return list(value)
    raise InvalidInputError(f"{name} is {value!r:.60}: expected {expected}")
