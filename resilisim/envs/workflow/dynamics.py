"""What an action does to an episode of Workflow-v0, as scalar functions over its record."""

from __future__ import annotations

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import INVOKE_TOOL, NO_OP, PARALLEL_EXECUTE, RETRY_TOOL
from resilisim.envs.workflow.arrays import Episode, TaskRecord, World
from resilisim.envs.workflow.bookkeeping import keep_books
from resilisim.envs.workflow.completion import (
    coverage_of,
    ended_by_law,
    order_share,
    succeeded_in_training,
    write_end,
)
from resilisim.envs.workflow.copying import copy_words
from resilisim.envs.workflow.executing import execute
from resilisim.envs.workflow.masking import allow_execution, write_mask
from resilisim.envs.workflow.observing import saturated, show_counters
from resilisim.envs.workflow.rewards import step_reward
from resilisim.seeding import WORD_MASK, threefry2x32
from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.state import ENDED, NEXT_PLACE, NO_LOOP, ORDER_BROKEN, RUNNING, TURNS_USED, record_turn

IN_ORDER_BONUS = 0.1  # beta_sequence

_threefry2x32 = scalar(threefry2x32)


@scalar
def begin_episode(episode: Episode, index: int, seed: int, task: TaskRecord, world: World) -> None:
    """Put an environment at the start of the episode of task number `index` under a seed."""
    key0, key1 = _threefry2x32(task.word0, task.word1, seed & WORD_MASK, seed >> 32)
    episode.task = index
    episode.seed = seed
    episode.key0 = key0
    episode.key1 = key1
    episode.running_success = world.running_success
    episode.stage = world.stage
    episode.episode += 1
    copy_words(episode.state, world.start_state)
    copy_words(episode.observation, task.start_observation)


@scalar
def step_environment(episode: Episode, action: int, outcome: int, task: TaskRecord, world: World) -> None:
    """Let one action happen in one environment and write what it did into its record.

    An action that the mask forbids is like a rejected call: it uses a step and does nothing else. `outcome` is DRAWN
    (`executing`), or the status (`columns`) that an execution is made to show: SUCCESS or one of the failures.
    """
    num_tools = world.num_tools
    action_type, tool = int(world.action_type[action]), int(world.action_tool[action])
    counters = episode.counters
    legal = episode.action_mask[action] == 1
    executes = legal and (action_type in (INVOKE_TOOL, RETRY_TOOL))
    signature = NO_LOOP
    if not legal:
        signature = num_tools + 1 + action
    elif action_type == NO_OP:
        signature = num_tools
    elif executes and episode.status[tool] == SUCCEEDED:
        signature = tool

    milestones_before = episode.milestones
    episode.tool = -1
    episode.tool_success = False
    episode.pattern = 0.0
    episode.named_similarity = task.similarity[tool] if tool >= 0 else 0.0
    reward = 0.0
    started = int(episode.running)
    episode.running = -1
    if legal and action_type == PARALLEL_EXECUTE:
        episode.running = tool
        episode.tools[tool, columns.STATUS] = columns.RUNNING
    for turn in range(2):  # first what was started in the step before
        executed = started if turn == 0 else (tool if executes else -1)
        if executed >= 0 and counters[ENDED] == RUNNING:
            reward += execute(episode, executed, outcome, task, world)
    if legal and not executes and action_type != PARALLEL_EXECUTE and action_type != NO_OP:
        keep_books(episode, action_type, tool, world)
    if legal and tool >= 0:
        episode.tools[tool, columns.LAST_STEP] = saturated(counters[TURNS_USED] + 1)
    record_turn(counters, signature, 0 if world.training_law else world.loop_length)

    coverage = coverage_of(episode, task, world)
    in_order = counters[ORDER_BROKEN] == 0 and episode.places_length > 0
    progress = coverage + (IN_ORDER_BONUS if in_order or world.printed_rules else 0.0)
    gain = max(0.0, min(1.0, progress) - episode.progress)
    episode.progress += gain
    full_success = counters[ORDER_BROKEN] == 0 and counters[NEXT_PLACE] == task.num_required

    way_forward = True
    if world.rewrites_mask:
        way_forward = write_mask(episode, task, world)
    elif episode.tool >= 0:
        allow_execution(episode, episode.tool, True, world)
    ended = ended_by_law(episode, coverage, full_success, way_forward, world)
    counters[ENDED] = ended
    show_counters(episode, world)

    success, order = full_success, 0.0
    if ended != RUNNING:
        order = order_share(episode, task)
        if world.training_law:
            success = succeeded_in_training(episode, ended, coverage, world)
    if world.two_phase:
        reward += step_reward(
            episode,
            action_type != NO_OP,
            action_type == NO_OP and episode.last_type == NO_OP,
            ended != RUNNING,
            success,
            gain,
            episode.milestones - milestones_before,
            order,
            coverage,
            task,
            world,
        )
    elif ended != RUNNING and full_success:
        reward = 1.0
    episode.last_type = action_type
    episode.episode_return += reward
    episode.reward = reward
    episode.terminated = ended != RUNNING
    if ended != RUNNING:
        episode.needs_reset = 1
        write_end(episode, success, full_success, coverage, order)
