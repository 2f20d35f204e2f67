"""Prompts as records: for each task the unflawed types and the flawed ones, with what obeying the plan is worth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from resilisim.bounds import Seed
from resilisim.datasets.schema import Record, RecordSchema, shipped_columns
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.options import OUTPUT_GROUP, check_options, option
from resilisim.tasks import Task
from resilisim.tasks.split import split_of_task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows import Planner, Workflow
from resilisim.workflows.argument_references import texts_of
from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import DEFAULT_SEVERITY, STRESSORS, FlawRefusal, tool_similarity
from resilisim.workflows.flaws.perturber import Program
from resilisim.workflows.plan_value import CostCalculator, PlanCosts, program_costs
from resilisim.workflows.planner import ReferencePlanner, no_similar_tools, resolve_planner, similar_by_retrieval
from resilisim.workflows.prompts import PROMPT_TYPES, PlanFormat, Prompt, check_style, render_prompt
from resilisim.workflows.steps import semantic_match_by_retrieval
from resilisim.workflows.templating import load_templates

PROMPT_SCHEMA = RecordSchema("resilisim-prompts-2", shipped_columns("prompts"))
ALL_METHODS = "all"


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """Which prompts to make.

    Each task gets one record of every type, and of "flawed" one for each flaw that its plan can carry; similar tools
    and matches with clauses of the task are found by retrieval. In a world the plan is the reference solution.

    Raises:
        InvalidInputError: A name does not exist, or options contradict each other.
    """

    kind: ClassVar[str] = "prompts"

    types: tuple[str, ...] = option(
        PROMPT_TYPES,
        "baseline, chain_of_thought, optimal or flawed; repeatable.",
        flag="--prompt-type",
        default_text="all four",
    )
    flaws: tuple[str, ...] = option(
        FLAW_TYPES,
        "Flaw type of the flawed prompts, or argument_passing; repeatable.",
        flag="--flaw",
        default_text="all seven",
    )
    severities: tuple[str, ...] = option(
        (DEFAULT_SEVERITY,), "light, moderate or severe; repeatable.", flag="--severity", default_text="moderate"
    )
    methods: tuple[str, ...] = option(
        (), "Method of a flaw, or all; repeatable.", flag="--method", default_text="one of two, drawn from the seed"
    )
    plan_format: PlanFormat = option("markdown", "How plans are written; xml is an <mcp_task>.", group=OUTPUT_GROUP)
    alternatives: bool = option(
        True, "Name similar tools with each step.", flag="--alternatives/--no-alternatives", group=OUTPUT_GROUP
    )
    semantic_match: bool | None = option(
        False,
        "Say how well each tool fits the task's words (slower the first time).",
        flag="--semantic-match/--no-semantic-match",
        default_text="with --plan-format xml",
        group=OUTPUT_GROUP,
    )
    templates: str | None = option(
        None, "Folder of templates that replace packaged ones.", path="folder", group=OUTPUT_GROUP
    )
    seed: Seed = option(0, "A different seed makes different flaws.")
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)

    def __post_init__(self) -> None:
        """Refuse what does not exist; a match that is left open is that of the plan's format."""
        check_options(self)
        if self.semantic_match is None:
            object.__setattr__(self, "semantic_match", self.plan_format == "xml")
        _check_names("prompt type", self.types, PROMPT_TYPES)
        _check_names("flaw", self.flaws, tuple(STRESSORS))
        _check_names("severity", self.severities, SEVERITIES)
        every_method = tuple(method for flaw in self.flaws for method in STRESSORS[flaw])
        if ALL_METHODS in self.methods:
            object.__setattr__(self, "methods", every_method)
        if self.methods:
            _check_names("method", self.methods, every_method, "the chosen flaws")
        check_style(self.environment.prompt_style, self.plan_format)
        if self.environment.force:
            forced = list(self.environment.force)
            raise InvalidInputError(f"force is {forced!r:.99}: expected none, as nothing is drawn for a prompt")

    def arguments(self) -> dict[str, Any]:
        """Return what decides the records; templates by their texts."""
        values = {**asdict(self), "environment": self.environment.to_mapping()}
        values["environment"].pop("salt")  # no luck is drawn for a prompt
        if self.templates is not None:
            values["templates"] = dict(load_templates(self.templates).texts)
        plain: dict[str, Any] = json.loads(json.dumps(values))  # lists, as they come back from a file
        return plain

    def make(self, library: ToolLibrary) -> PromptSource:
        """Return the source of the records."""
        return PromptSource(self, library)

    def flaws_to_make(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield flaw type, severity and method (None: drawn) of each flawed record of a task."""
        for flaw in self.flaws:
            for severity in self.severities:
                if not self.methods:
                    yield flaw, severity, None
                for method in STRESSORS[flaw]:
                    if method in self.methods:
                        yield flaw, severity, method

    def records_per_task(self) -> int:
        """Return how many records a task has whose plan can carry every flaw."""
        unflawed = sum(prompt_type != "flawed" for prompt_type in self.types)
        return unflawed + (sum(1 for _ in self.flaws_to_make()) if "flawed" in self.types else 0)


class PromptSource:
    """Makes the prompt records of one task after the other."""

    schema = PROMPT_SCHEMA

    def __init__(self, spec: PromptSpec, library: ToolLibrary) -> None:
        self.spec = spec
        self.library = library
        environment = spec.environment
        self.rules = environment.rules()
        retriever = environment.retriever(library)
        self._in_world = environment.world is not None
        self._planner: Planner = (
            ReferencePlanner(library, environment.failure_model(), self.rules)
            if self._in_world
            else resolve_planner(
                environment.planner,
                library,
                environment.planning_law(),
                self.rules,
                similar=similar_by_retrieval(retriever) if spec.alternatives else no_similar_tools,
                match=semantic_match_by_retrieval(retriever) if spec.semantic_match else None,
            )
        )
        self._perturber = Perturber(library, self.rules, lambda: tool_similarity(retriever))
        self._costs = CostCalculator(library, environment.failure_model(), self.rules)
        self._templates = None if spec.templates is None else load_templates(spec.templates)

    def records(self, task: Task) -> Iterator[Record]:
        """Yield the unflawed records of a task in the order of the spec's types, then the flawed ones."""
        sound = self.plan(task)
        costs = self.costs(task, sound)
        for prompt_type in self.spec.types:
            if prompt_type != "flawed":
                yield self._record(task, prompt_type, sound, costs, None)
        if "flawed" in self.spec.types:
            for flawed in self.flawed_workflows(task, sound):
                if isinstance(flawed, FlawedWorkflow):
                    yield self.flawed_record(task, flawed)

    def flawed_workflows(self, task: Task, sound: Workflow) -> Iterator[FlawedWorkflow | FlawRefusal]:
        """Yield each flaw of the spec in the task's plan, or why the plan cannot carry it."""
        if self._in_world:
            program = Program.of(sound, self.library)
            perturber = self.spec.environment.perturber(program.library)
            for flaw in self.spec.flaws_to_make():
                flawed = perturber.perturb(program.workflow, program.workflow.tools, *flaw, self.spec.seed)
                yield program.with_flaw(flawed) if isinstance(flawed, FlawedWorkflow) else flawed
            return
        for flaw in self.spec.flaws_to_make():
            yield self._perturber.perturb(sound, task.required_tools, *flaw, self.spec.seed)

    def plan(self, task: Task) -> Workflow:
        """Return the sound plan of a task."""
        return self._planner.plan(task)

    def costs(self, task: Task, workflow: Workflow) -> PlanCosts:
        """Return what obeying a plan of the task is worth; in a world, measured by the reference solution."""
        if self._in_world:
            environment = self.spec.environment
            return program_costs(
                self.library, self.plan(task).steps, workflow.steps, environment.failure_model(), self.rules
            )
        return self._costs.costs(task.required_tools, workflow.steps, texts_of(task))

    def flawed_record(self, task: Task, flawed: FlawedWorkflow) -> Record:
        """Return the record of a flawed workflow."""
        return self._record(task, "flawed", flawed.workflow, self.costs(task, flawed.workflow), flawed)

    def prompt(self, task: Task, prompt_type: str, workflow: Workflow) -> Prompt:
        """Return a prompt that may show a plan."""
        environment = self.spec.environment
        return render_prompt(
            task,
            prompt_type,
            workflow,
            self.library,
            tools_listed=environment.tools == "listed",
            rules=self.rules,
            protocol=environment.protocol,
            style=environment.prompt_style,
            offers_wait=environment.offers_wait,
            templates=self._templates,
            plan_format=self.spec.plan_format,
            parameters=environment.parameters if self._in_world else "lenient",
            answers=self._in_world,
        )

    def _record(
        self, task: Task, prompt_type: str, workflow: Workflow, costs: PlanCosts, flawed: FlawedWorkflow | None
    ) -> Record:
        prompt = self.prompt(task, prompt_type, workflow)
        return {
            "instance_id": task.instance_id,
            "task_type": task.task_type,
            "complexity": task.complexity,
            "split": split_of_task(task),
            "required_tools": list(task.required_tools),
            "prompt_type": prompt_type,
            "protocol": self.spec.environment.protocol,
            "plan_format": prompt.plan_format,
            "text": prompt.text,
            "planner": workflow.planner,
            "workflow": list(workflow.tools),
            "parameters": [json.dumps(dict(step.parameters), ensure_ascii=False) for step in workflow.steps],
            "max_tries": [step.max_tries for step in workflow.steps],
            "skip_from": [step.skip_from for step in workflow.steps],
            "predicted_success_probability": workflow.predicted_success_probability,
            "flaw": None if flawed is None else flawed.flaw_mapping(),
            "costs": costs.to_mapping(),
            "seed": None if flawed is None else self.spec.seed,
        }


def _check_names(what: str, names: tuple[str, ...], valid: tuple[str, ...], where: str = "") -> None:
    if not names:
        raise InvalidInputError(f"no {what} was given: expected at least one of {', '.join(valid)}")
    for name in names:
        if name not in valid:
            raise unknown_name(what, name, valid, where)
        if names.count(name) > 1:
            raise InvalidInputError(f"{what} {name!r} was given twice: expected each once")
