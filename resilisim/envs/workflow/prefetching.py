"""Telling the processor early which memory a loop will need.

Thousands of episodes do not fit into a core's own caches. A loop that asks for an episode's memory some environments
ahead of its turn does not wait for it. Prefetching changes no value; plain Python leaves it out.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from resilisim.envs.workflow.arrays import Int, Records, World
from resilisim.simulator.compiled import scalar

AHEAD = 6  # environments; twice as far ahead the number of its task is asked for
WORDS_PER_LINE = 8

_codes: Any = cgutils  # without type information
_READ_OR_WRITE, _KEEP_IN_ALL_CACHES, _DATA = 1, 3, 1


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write LLVM's instruction of that name for an array and an index."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    place = builder.bitcast(builder.gep(data, [arguments[1]]), _codes.voidptr_t)
    number = _codes.int32_t
    kind = _codes.ir.FunctionType(_codes.ir.VoidType(), [_codes.voidptr_t, number, number, number])
    instruction = _codes.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(instruction, [place, *(number(flag) for flag in (_READ_OR_WRITE, _KEEP_IN_ALL_CACHES, _DATA))])
    return context.get_dummy_value()


def _typed(typing_context: Any, array: Any, index: Any) -> Any:
    return types.none(array, types.intp), _generate


_prefetch: Any = intrinsic(_typed)


def prefetch(array: NDArray[Any], index: int) -> None:
    """Ask for the memory of an entry of an array of one axis; nothing happens in plain Python."""


@overload(prefetch)
def _compile_prefetch(array: Any, index: Any) -> Any:
    def ask(array: Any, index: Any) -> Any:
        return _prefetch(array, index)

    return ask


@scalar
def look_ahead(env: int, actions: Int, episodes: Records, tasks: Records, world: World) -> None:
    """Ask for what environments after `env` will need when it is their turn to step.

    Args:
        env: The environment whose turn it is.
        actions: (num_envs,).
        episodes: (num_envs,).
        tasks: (num_tasks,).
        world: What all environments share.
    """
    if env + 2 * AHEAD < len(actions):
        prefetch(episodes[env + 2 * AHEAD].identity, 0)
    if env + AHEAD >= len(actions):
        return
    episode = episodes[env + AHEAD]
    action = actions[env + AHEAD]
    prefetch(episode.action_mask, action)
    prefetch(episode.task_columns, len(episode.task_columns) - 1)
    prefetch(episode.state, 0)
    prefetch(episode.state, WORDS_PER_LINE)
    prefetch(episode.identity, WORDS_PER_LINE)
    tool = int(world.action_tool[action])
    if tool >= 0:
        prefetch(episode.tools[tool], 0)
        prefetch(episode.executions, tool)
        prefetch(episode.retries, tool)
        prefetch(episode.places, 0)
        task = tasks[episode.task]
        prefetch(task.place, tool)
        prefetch(task.similarity, tool)
        prefetch(task.numbers, 0)
