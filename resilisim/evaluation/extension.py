"""Playing again, with higher limits, the episodes of a run that a limit ended: the step-limit experiment.

Molinari and Ciravegna (2026) gave ReAct 100 steps in place of 20, on the questions that it had lost at its limit and
RP-ReAct had answered, to see whether steps are what it lacks ("React-100").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.limits import RunLimits
from resilisim.evaluation.run.plan import RunPlan, library_of_run
from resilisim.evaluation.run.player import Players
from resilisim.evaluation.run.store import read_manifest, read_records, refuse_explored
from resilisim.evaluation.run_results import EvaluationResult, play_plan
from resilisim.policies.registry import with_changed
from resilisim.provenance import content_hash
from resilisim.redaction import SECRET_MARK
from resilisim.statistics import Estimate
from resilisim.statistics.comparison import mean_difference
from resilisim.statistics.estimates import clustered_proportion
from resilisim.tables.table import Table
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary

BY_TURNS: Final = "turns"
_CAPS: Final = ("max_llm_calls", "max_total_tokens")  # of an agent, which end it in mid-episode

Key: TypeAlias = "tuple[str, str, int]"  # task, prompt type and seed: the draws of an episode hang on nothing else


def limit_of(record: EpisodeRecord) -> str | None:
    """Return the limit that ended a failed episode: "turns", "steps", or a cap of the agent; None if none did."""
    if record["outcome"] == 1:
        return None
    if record["ended_by"] == BY_TURNS:
        return BY_TURNS
    agent = record.get("agent")
    if agent is None:
        return None
    if agent["ended_by"] in _CAPS:
        return str(agent["ended_by"])
    limits = [event.get("details", {}).get("limit") for event in agent["events"] if event["kind"] == "failure"]
    return next((str(limit) for limit in limits if limit), None) if agent["ended_by"] == "gave_up" else None


@dataclass(frozen=True, slots=True)
class Extension:
    """What higher limits brought.

    Attributes:
        before: The policy as it was played.
        after: The policy with its higher limits.
        result: The episodes that were played again.
        outcomes: (num_episodes) All episodes of the policy: task -> outcomes before and after.
        ended: Episodes before, by the limit that ended them.
        ended_again: Episodes that were played again, by the limit that ended them.
        num_right: Episodes that were played again and are right now.
    """

    before: str
    after: str
    result: EvaluationResult
    outcomes: Mapping[str, tuple[tuple[int, int], ...]] = field(repr=False)
    ended: Counter[str]
    ended_again: Counter[str]
    num_right: int

    @property
    def num_episodes(self) -> int:
        """Episodes of the policy in the run."""
        return sum(map(len, self.outcomes.values()))

    def success(self, is_after: bool) -> Estimate:
        """Return the success rate of all episodes, tasks being the units that vary."""
        rights = [sum(pair[is_after] for pair in pairs) for pairs in self.outcomes.values()]
        return clustered_proportion(rights, [len(pairs) for pairs in self.outcomes.values()])

    @property
    def gain(self) -> Estimate:
        """The difference in success, on common draws."""
        gains = [sum(after - before for before, after in pairs) for pairs in self.outcomes.values()]
        return mean_difference(gains, [len(pairs) for pairs in self.outcomes.values()])

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "before": self.before,
            "after": self.after,
            "num_episodes": self.num_episodes,
            "ended_by_limit": dict(self.ended),
            "played_again": self.result.num_episodes,
            "right_now": self.num_right,
            "ended_by_limit_again": dict(self.ended_again),
            "success_before": self.success(False).to_mapping(),
            "success_after": self.success(True).to_mapping(),
            "gain": self.gain.to_mapping(),
        }

    def table(self) -> Table:
        """Return before and after as a table."""
        again = self.result.num_episodes
        rest = again - self.num_right - self.ended_again.total()
        rows: list[list[object]] = [
            [self.before, self.num_episodes, self.success(False), _listed(self.ended), None, None],
            [self.after, again, self.success(True), _listed(self.ended_again), self.num_right, rest],
            ["difference", None, self.gain, None, None, None],
        ]
        heads = ("policy", "episodes played", "success", "ended by a limit", "right now", "wrong or given up")
        return Table(
            f"Episodes that a limit ended, played again with higher limits ({again:,} of {self.num_episodes:,})",
            heads,
            rows,
            text_columns=(0, 3),
            notes=[
                (
                    f"Success in percent, of all {self.num_episodes:,} episodes, with 95% intervals clustered by task: "
                    "those that no limit ended count as they were. The draws are the same."
                )
            ],
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{limit} {count:,}" for limit, count in sorted(counts.items())) or "0"


def extend_run(
    directory: Path | str,
    out: Path | str,
    find_task: Callable[[str], Task],
    *,
    policy: str | None = None,
    options: Mapping[str, object],
    max_turns: int | None = None,
    solved_by: str | None = None,
    library: ToolLibrary | None = None,
    models_of: Callable[[str], ModelSettings] = lambda policy: ModelSettings(),
    workers: int = 1,
    limits: RunLimits | None = None,
    progress: bool | None = None,
) -> Extension:
    """Play again those episodes of a policy that a limit ended, with other limits, on the same draws.

    Args:
        directory: Folder of the run.
        out: Folder of the new one; the same call resumes it.
        find_task: Returns the task of an id, for runs outside of worlds.
        policy: Whose episodes; may be left out where the run holds one that limits ended.
        options: Options of the policy with their new values, such as {"steps": 100}.
        max_turns: Turns of an episode; those of the run if omitted.
        solved_by: Only episodes that this other policy of the run has solved.
        library: The run's tool library; the default one if omitted.
        models_of: Returns the models that answer a policy of the run.
        workers: Processes.
        limits: Where to stop before everything is played.
        progress: Whether to show progress; None shows it for runs of more than two seconds.

    Raises:
        InvalidInputError: Nothing would be different, no episode was ended by a limit, or the run cannot be played
            again.
        StoreError: A folder cannot be read or written.
    """
    if not options and max_turns is None:
        raise InvalidInputError("nothing would be different: expected an option such as steps=100, or more turns")
    manifest = read_manifest(directory)
    arguments = manifest["arguments"]
    whose, records, wanted = _limited(directory, arguments, policy, solved_by)
    spec = str(arguments["policies"][list(arguments["policy_names"]).index(whose)])
    if SECRET_MARK in spec:
        raise InvalidInputError(f"policy {spec!r:.120} was played with a secret, which is not kept: play it anew")
    environment = EnvironmentSettings(**arguments["environment"])
    if max_turns is not None:
        environment = environment.with_options(max_turns=max_turns)
    used = library_of_run(arguments, library, directory)
    ids = dict.fromkeys(task for task, _, _ in wanted)
    tasks: list[Any] = list(ids) if environment.world is not None else list(map(find_task, ids))
    plan = RunPlan.of(
        [with_changed(spec, options)],
        tasks,
        list(arguments["prompts"]),
        list(arguments["seeds"]),
        environment=environment,
        library=None if environment.world is not None or library is None else used,
        model=models_of(whose),
        record_texts=arguments.get("record_texts"),
    )
    why = {"run": manifest["hash"], "policy": whose, "episodes": content_hash(sorted(map(list, wanted)))}
    plan = plan.restricted(lambda each: (each.task.instance_id, each.prompt, each.seed) in wanted, why)
    players = Players(workers, plan.has_agents, None)
    result = play_plan(plan, out, limits or RunLimits(), players, progress)
    return _extension(whose, plan.settings.contestants[0].name, records, result)


def _limited(
    directory: Path | str, arguments: Mapping[str, Any], policy: str | None, solved_by: str | None
) -> tuple[str, dict[Key, tuple[int, str | None]], set[Key]]:
    """Return whose episodes are meant, all of them with outcome and limit, and those to be played again."""
    if "policy_names" not in arguments or "again" in arguments:
        raise InvalidInputError(f"{directory}: expected a run of `evaluate`")
    refuse_explored(directory, arguments, "episodes are played again one by one, on their draws")
    names = list(arguments["policy_names"])
    for name in (policy, solved_by):
        if name is not None and name not in names:
            raise unknown_name("policy", name, names, str(directory))
    by_policy: dict[str, dict[Key, tuple[int, str | None]]] = {name: {} for name in names}
    for record in read_records(directory):
        key = record["instance_id"], record["prompt_type"], record["seed"]
        by_policy[record["policy"]][key] = record["outcome"], limit_of(record)
    solved = None if solved_by is None else {key for key, (outcome, _) in by_policy[solved_by].items() if outcome == 1}
    wanted = {
        name: {key for key, (_, limit) in own.items() if limit is not None and (solved is None or key in solved)}
        for name, own in by_policy.items()
        if policy in (None, name) and name != solved_by
    }
    limited = [name for name, keys in wanted.items() if keys]
    if len(limited) != 1:
        whose = (
            "none was" if not limited else f"episodes of several were ({', '.join(limited)}): name one with --policy"
        )
        raise InvalidInputError(f"{directory}: expected a policy whose failed episodes were ended by a limit; {whose}")
    return limited[0], by_policy[limited[0]], wanted[limited[0]]


def _extension(
    before: str, after: str, records: Mapping[Key, tuple[int, str | None]], result: EvaluationResult
) -> Extension:
    again = {
        (record["instance_id"], record["prompt_type"], record["seed"]): (record["outcome"], limit_of(record))
        for record in read_records(result.directory)
    }
    outcomes: dict[str, list[tuple[int, int]]] = {}
    for key, (outcome, _) in records.items():
        outcomes.setdefault(key[0], []).append((int(outcome == 1), int(again.get(key, (outcome, None))[0] == 1)))
    return Extension(
        before,
        after,
        result,
        {task: tuple(pairs) for task, pairs in outcomes.items()},
        Counter(limit for _, limit in records.values() if limit is not None),
        Counter(limit for _, limit in again.values() if limit is not None),
        sum(outcome == 1 for outcome, _ in again.values()),
    )
