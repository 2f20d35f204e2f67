"""What datasets of played episodes share: which episodes of a task are played, and where."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from resilisim.bounds import Count, Seed, Share
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.protocol.message_reader import read_text
from resilisim.envs.protocol.native_tools import native_tools
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.arguments import check_prompts
from resilisim.options import check_options, option
from resilisim.seeding import EVALUATION_SALT, MAX_SEED, TRAINING_SALT, Draws
from resilisim.simulator import Message
from resilisim.tasks import Task
from resilisim.tasks.wording import SEARCH_SIZE, Searcher
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import ParameterMode
from resilisim.tool_library.renaming import drawn_names, renamed_library
from resilisim.tool_library.retrieval import ToolHit
from resilisim.workflows import Planner
from resilisim.workflows.flaws import FLAW_TYPES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import DEFAULT_SEVERITY, Flaw, ToolSimilarity, check_flaw, tool_similarity
from resilisim.workflows.flaws.perturber import Program
from resilisim.workflows.planner import ReferencePlanner, resolve_planner, similar_by_retrieval
from resilisim.workflows.prompts import FLAWED, Prompt, PromptChoice, parse_prompt_choice

# Luck of its own: who trains on these episodes has not seen the luck that evaluations draw. Under the benchmark law any
# failure goes away by calling again, so one that says so is the only one that nobody learns a bad habit from.
TRAINING_ENVIRONMENT = EnvironmentSettings(salt=TRAINING_SALT, errors="transient")
ArgumentsForm: TypeAlias = Literal["object", "text"]
Form: TypeAlias = Literal["tags", "react"]
EPISODES_GROUP = "Conversations and preferences"  # heading of the options of both
# Two kinds of agent to learn from: one that has to find its tools, and one that is shown a plan.
DEFAULT_PROMPTS = ("baseline", "optimal")


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Which episodes of each task are played, where, and how the demonstrator behaves.

    Each prompt type is played with every seed. Of "flawed", a plan that can carry none of the flaws has no episode; nor
    has, of "flawed:FLAW:SEVERITY:METHOD", one that cannot carry this one. Flaws and severities of prompts that are just
    "flawed" are drawn for each episode. Arguments of native calls are objects, as chat templates take them, or JSON
    text, for readers that need columns of fixed types. The luck is the training luck unless another salt is given: a
    model must not be trained on the luck that it is evaluated with.

    Raises:
        InvalidInputError: A prompt type, flaw or severity does not exist, or a number is out of range.
    """

    prompts: tuple[str, ...] = option(
        DEFAULT_PROMPTS,
        "Prompt type that is played, or flawed:FLAW:SEVERITY; repeatable.",
        flag="--prompt",
        default_text="baseline and optimal",
        group=EPISODES_GROUP,
    )
    seeds: Count = option(1, "Episodes of each task and prompt type.", group=EPISODES_GROUP)
    first_seed: Seed = option(0, "Seed of the first of them.", group=EPISODES_GROUP)
    flaws: tuple[str, ...] = option(
        FLAW_TYPES, "Flaw type of the flawed prompts, or argument_passing; repeatable.", flag="--flaw"
    )
    severities: tuple[str, ...] = option(
        (DEFAULT_SEVERITY,), "light, moderate or severe; repeatable.", flag="--severity"
    )
    search: bool = option(
        True,
        "Let the exact optimum look up tools that it has not read about before it calls them.",
        flag="--look-up/--no-look-up",
        group=EPISODES_GROUP,
    )
    pass_parameters: bool = option(
        True,
        "Let the exact optimum pass parameters in its calls.",
        flag="--pass-parameters/--no-pass-parameters",
        group=EPISODES_GROUP,
    )
    alternatives: bool = option(False, "Name similar tools with each step of a plan.")
    rename_tools: Share = option(
        0.0,
        "Share of the tasks whose tools get random names, so that a model reads names instead of memorising them.",
        group=EPISODES_GROUP,
    )
    call_arguments: ArgumentsForm = option(
        "object",
        "Form of the arguments of native calls; text is JSON text in columns of fixed types.",
        flag="--arguments",
        noun="form of arguments",
        group=EPISODES_GROUP,
    )
    form: Form = option(
        "tags",
        "How conversations in the terse style are written: in the tags of the prompt, or as the agent react plays them "
        "(Action: NAME {json}).",
        noun="form",
        group=EPISODES_GROUP,
    )
    environment: EnvironmentSettings = TRAINING_ENVIRONMENT

    def __post_init__(self) -> None:
        """Refuse what no episode could be played with."""
        check_options(self)
        object.__setattr__(self, "prompts", check_prompts(self.prompts))
        for name in ("flaws", "severities"):
            if not getattr(self, name):
                raise InvalidInputError(f"no {name} were given: expected at least one")
        for flaw, severity in itertools.product(self.flaws, self.severities):
            check_flaw(flaw, severity, None)
        if self.environment.salt == EVALUATION_SALT:
            raise InvalidInputError(
                f"salt {EVALUATION_SALT!r} is the luck of evaluations: expected another one, such as {TRAINING_SALT!r}"
            )
        if self.environment.force:
            raise InvalidInputError(
                f"force is {list(self.environment.force)!r:.99}: expected none, as training data hold what luck brings"
            )
        if self.first_seed + self.seeds - 1 > MAX_SEED:
            raise InvalidInputError(f"first_seed is {self.first_seed}: expected seeds of at most 2^63 - 1")
        if self.environment.parameters == "strict" and not self.pass_parameters:
            raise InvalidInputError("pass_parameters is False: expected True, as the mode 'strict' refuses bare calls")
        if self.form == "react" and self.environment.prompt_style != "terse":
            raise InvalidInputError(
                f"form is 'react' with prompt style {self.environment.prompt_style!r}: expected the style 'terse'"
            )
        if self.rename_tools and self.environment.world is not None:
            raise InvalidInputError(f"rename_tools is {self.rename_tools} with a world: expected 0")

    def arguments(self) -> dict[str, Any]:
        """Return what decides the records, as JSON values; what came later is left out where it is as it was before."""
        values = {**asdict(self), "environment": self.environment.to_mapping()}
        plain: dict[str, Any] = json.loads(json.dumps(values))  # lists, as they come back from a file
        before = {"rename_tools": 0.0, "form": "tags"}
        return {name: value for name, value in plain.items() if name not in before or value != before[name]}


@dataclass(frozen=True, slots=True)
class Start:
    """How an episode of a task begins: prompt (or its type), seed, and what is wrong with the plan in the prompt."""

    prompt: str | Prompt
    seed: int
    flaw: Flaw | None = None

    @property
    def prompt_type(self) -> str:
        """The type of the prompt, with the names of a flaw if it has one."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt.type

    def flaw_column(self) -> dict[str, str]:
        """Return the flaw as it stands in records: empty texts where there is none (`conversations.episode_schema`)."""
        return dict.fromkeys(("type", "method", "severity"), "") if self.flaw is None else asdict(self.flaw)


@dataclass(frozen=True, slots=True)
class _UnderOtherNames:
    """Finds what another searcher finds, and calls it otherwise."""

    searcher: Searcher
    names: Mapping[str, str]

    def search_many(self, queries: Sequence[str], k: int = SEARCH_SIZE) -> list[list[ToolHit]]:
        """Return for each query the k tools nearest to it, best first."""
        return [
            [replace(hit, name=self.names[hit.name]) for hit in hits] for hits in self.searcher.search_many(queries, k)
        ]


class Stage:
    """Where the episodes of a dataset are played; a retrieval model is loaded only when one is needed.

    Searches are answered by retrieval with the model of the spec's options unless another searcher is given; and so is
    which tools are alike, unless that is known already of the same tools in the same order.
    """

    def __init__(
        self,
        library: ToolLibrary,
        spec: RolloutSpec,
        searcher: Searcher | None = None,
        similarity: Callable[[], ToolSimilarity] | None = None,
    ) -> None:
        settings = spec.environment
        self.is_renamed = isinstance(searcher, _UnderOtherNames)
        retriever = settings.retriever(library)
        similar = similar_by_retrieval(retriever) if spec.alternatives else None
        self.library = library
        self.settings = settings
        self.protocol = settings.protocol
        self.arguments = spec.call_arguments
        self.form = spec.form
        self.parameters: ParameterMode = settings.parameters
        self.searcher: Searcher = searcher or retriever
        self._spec = spec
        self.answers = settings.world is not None
        rules = settings.rules()
        self._planner: Planner = (
            ReferencePlanner(library, settings.failure_model(), rules)
            if self.answers
            else resolve_planner(settings.planner, library, settings.planning_law(), rules, similar)
        )
        self._similarity = similarity or functools.cache(lambda: tool_similarity(retriever))
        self._perturber = Perturber(library, rules, self._similarity)
        self.environment = ConversationEnv(settings, library=library, planner=self._planner, search=self._search)

    def of_task(self, task: Task) -> tuple[Stage, Task]:
        """Return where a task is played and what it is called there: by the spec's share under drawn names of tools.

        Searches find the same tools under their drawn names.
        """
        draws = Draws("resilisim/datasets/names", self.settings.salt, task.instance_id)
        if draws.uniform() >= self._spec.rename_tools:
            return self, task
        names = drawn_names(self.library, draws)
        required = tuple(names[name] for name in task.required_tools)
        renamed, searcher = renamed_library(self.library, names), _UnderOtherNames(self.searcher, names)
        stage = Stage(renamed, self._spec, searcher, self._similarity)
        return stage, replace(task, required_tools=required)

    def _search(self, query: str, k: int) -> Sequence[ToolHit]:
        return self.searcher.search_many([query], k)[0]

    def starts(self, task: Task) -> Iterator[Start]:
        """Yield the starts of a task's episodes, prompt types outermost, then seeds."""
        spec = self._spec
        for prompt, choice in ((prompt, parse_prompt_choice(prompt)) for prompt in spec.prompts):
            for seed in range(spec.first_seed, spec.first_seed + spec.seeds):
                start = Start(prompt, seed) if choice.type != FLAWED else self._flawed_start(task, seed, choice)
                if start is not None:
                    yield start

    def _flawed_start(self, task: Task, seed: int, choice: PromptChoice) -> Start | None:
        """Draw a flawed plan; None where the plan can carry none of the flaws."""
        flaws = self._spec.flaws if choice.flaw is None else (choice.flaw,)
        severities = self._spec.severities if choice.flaw is None else (choice.severity,)
        draws = Draws("resilisim/datasets/flaw", task.instance_id, seed)
        severity, drawn = draws.choice(severities), draws.shuffled(flaws)
        sound = self._planner.plan(task)
        program = Program.of(sound, self.library) if self.answers else None
        if program is None:
            flawed = self._perturber.first_carried(sound, task.required_tools, drawn, severity, choice.method, seed)
        else:  # in a world, whose reference solutions may call a tool several times
            steps, perturber = program.workflow, self.settings.perturber(program.library)
            flawed = perturber.first_carried(steps, steps.tools, drawn, severity, choice.method, seed)
        if not isinstance(flawed, FlawedWorkflow):
            return None
        flawed = flawed if program is None else program.with_flaw(flawed)
        prompt = self.environment.render_prompt(task, FLAWED, flawed.workflow)
        return Start(replace(prompt, flaw=flawed.flaw_mapping()), seed, flawed.flaw)

    @property
    def tools_column(self) -> list[dict[str, Any]] | str | None:
        """The functions that a native model is offered, in the form of the arguments; None in the text protocol."""
        if self.protocol == "text":
            return None
        tools = native_tools(self.answers, self.settings.offers_wait)
        return tools if self.arguments == "object" else json.dumps(tools)

    def read(self, text: str) -> Message:
        """Return what a message of the text protocol means here."""
        return read_text(text, self.library, self.parameters, self.answers, self.settings.offers_wait)
