"""What datasets of played episodes share: which episodes of a task are played, and where."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

from resilisim.datasets.schema import DataType
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.protocol import native_tools, read_text
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import MAX_COUNT, InvalidInputError, check_integer, unknown_name
from resilisim.evaluation.run.plan import check_prompts
from resilisim.options import option
from resilisim.seeding import EVALUATION_SALT, MAX_SEED, TRAINING_SALT, Draws
from resilisim.simulator import Message
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import ParameterMode
from resilisim.tool_library.retrieval import ToolHit, ToolRetriever, default_retriever
from resilisim.workflows import Planner, Prompt, resolve_planner, similar_by_retrieval
from resilisim.workflows.flaws import (
    DEFAULT_SEVERITY,
    FLAW_TYPES,
    Flaw,
    FlawedWorkflow,
    Perturber,
    check_flaw,
    tool_similarity,
)
from resilisim.workflows.prompt_choice import FLAWED, parse_prompt_choice


class FlawedPrompts:
    """Draws flawed plans.

    Args:
        environment: Where the episodes are played.
        planner: Makes the sound plans.
        retriever: Compares tools for flaws that put one in the place of another.
    """

    def __init__(
        self,
        environment: ConversationEnv,
        planner: Planner,
        retriever: ToolRetriever,
    ) -> None:
        self._environment = environment
        self._planner = planner
        self._perturber = Perturber(environment.library, environment.rules, lambda: tool_similarity(retriever))

    def draw(
        self, task: Task, seed: int, flaws: Sequence[str], severities: Sequence[str], method: str | None = None
    ) -> tuple[Prompt, Flaw] | None:
        """Return a prompt with a flawed plan and the flaw; None where the plan can carry none of the flaws.

        Args:
            task: The task.
            seed: Seed of the episode.
            flaws: Flaw types to draw from.
            severities: Severities to draw from.
            method: Method of the one flaw type that is given; None draws it.
        """
        draws = Draws("resilisim/datasets/flaw", task.instance_id, seed)
        severity = draws.choice(severities)
        sound = self._planner.plan(task)
        drawn = draws.shuffled(flaws)
        flawed = self._perturber.first_carried(sound, task.required_tools, drawn, severity, method, seed)
        if not isinstance(flawed, FlawedWorkflow):
            return None
        return self._environment.render_prompt(task, "flawed", flawed.workflow), flawed.flaw


# Luck of its own: who trains on these episodes has not seen the luck that evaluations draw.
TRAINING_ENVIRONMENT = EnvironmentSettings(salt=TRAINING_SALT)
FLAW_TYPE: DataType = {"type": "string", "method": "string", "severity": "string"}
ArgumentsForm: TypeAlias = Literal["object", "text"]
EPISODES_GROUP = "Conversations and preferences"  # heading of the options of both
# Two kinds of agent to learn from: one that has to find its tools, and one that is shown a plan.
DEFAULT_PROMPTS = ("baseline", "optimal")


class Searcher(Protocol):
    """What rolling out needs of a retriever."""

    def search(self, query: str, k: int = 5) -> Sequence[ToolHit]:
        """Return the k tools nearest to a query, best first."""
        ...

    def search_many(self, queries: Sequence[str], k: int = 5) -> list[list[ToolHit]]:
        """Return what `search` gives for each query."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Which episodes of each task are played, where, and how the demonstrator behaves.

    Each prompt type is played with every seed. Of "flawed", a plan that can carry none of the flaws has no episode; nor
    has, of "flawed:FLAW:SEVERITY:METHOD", one that cannot carry this one. Flaws and severities of prompts that are just
    "flawed" are drawn for each episode.

    Attributes:
        alternatives: Whether the steps of plans in prompts name similar tools (by retrieval); the environment's own
            prompts don't.
        call_arguments: Form of the arguments of native calls, and of the definitions of functions: "object", as chat
            templates take them, or "text" (JSON text in columns of fixed types, for readers that need those).
        environment: Options of the environment. The luck is the training luck unless another salt is given: a model
            must not be trained on the luck that it is evaluated with.
    """

    prompts: tuple[str, ...] = option(
        DEFAULT_PROMPTS,
        "Prompt type that is played, or flawed:FLAW:SEVERITY; again for more.",
        flag="--prompt",
        default_text="baseline and optimal",
        group=EPISODES_GROUP,
    )
    seeds: int = option(1, "Episodes of each task and prompt type.", least=1, most=MAX_COUNT, group=EPISODES_GROUP)
    first_seed: int = option(0, "Seed of the first of them.", least=0, most=MAX_SEED, group=EPISODES_GROUP)
    flaws: tuple[str, ...] = option(FLAW_TYPES, "Flaw type of the flawed prompts; again for more.", flag="--flaw")
    severities: tuple[str, ...] = option(
        (DEFAULT_SEVERITY,), "light, moderate or severe; again for more.", flag="--severity"
    )
    search: bool = option(
        True,
        "Let the exact optimum look up tools before it calls what it has not read of.",
        flag="--search/--no-search",
        group=EPISODES_GROUP,
    )
    pass_parameters: bool = option(
        True,
        "Let it pass parameters in its calls.",
        flag="--pass-parameters/--no-pass-parameters",
        group=EPISODES_GROUP,
    )
    alternatives: bool = option(False, "Name similar tools with each step of a plan.")
    call_arguments: ArgumentsForm = option(
        "object",
        "Form of the arguments of native calls; text is JSON text in columns of fixed types.",
        flag="--arguments",
        group=EPISODES_GROUP,
    )
    environment: EnvironmentSettings = TRAINING_ENVIRONMENT

    def __post_init__(self) -> None:
        """Refuse what no episode could be played with.

        Raises:
            InvalidInputError: A prompt type, flaw or severity does not exist, or a number is out of range.
        """
        object.__setattr__(self, "prompts", check_prompts(self.prompts))
        object.__setattr__(self, "seeds", check_integer("seeds", self.seeds, 1, MAX_COUNT))
        object.__setattr__(self, "first_seed", check_integer("first_seed", self.first_seed, 0, MAX_SEED))
        for name in ("flaws", "severities"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise InvalidInputError(f"no {name} were given: expected at least one")
        for flaw, severity in itertools.product(self.flaws, self.severities):
            check_flaw(flaw, severity, None)
        if self.environment.salt == EVALUATION_SALT:
            raise InvalidInputError(
                f"salt {EVALUATION_SALT!r} is the luck of evaluations: expected another one, such as {TRAINING_SALT!r}"
            )
        if self.first_seed + self.seeds - 1 > MAX_SEED:
            raise InvalidInputError(f"first_seed is {self.first_seed}: expected seeds of at most 2^63 - 1")
        if self.call_arguments not in get_args(ArgumentsForm):
            raise unknown_name("form of arguments", str(self.call_arguments), get_args(ArgumentsForm))
        if self.environment.parameters == "strict" and not self.pass_parameters:
            raise InvalidInputError("pass_parameters is False: expected True, as the mode 'strict' refuses bare calls")

    def arguments(self) -> dict[str, Any]:
        """Return what decides the records, as JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # lists, as they come back from a file
        return plain


@dataclass(frozen=True, slots=True)
class Start:
    """How an episode of a task begins.

    Attributes:
        prompt: Prompt type, or a prompt.
        seed: Episode seed.
        flaw: What is wrong with the plan in the prompt, if something is.
    """

    prompt: str | Prompt
    seed: int
    flaw: Flaw | None = None

    def flaw_column(self) -> dict[str, str] | None:
        """Return the flaw as it stands in records (`FLAW_TYPE`)."""
        return None if self.flaw is None else asdict(self.flaw)


class Stage:
    """Where the episodes of a dataset are played; a retrieval model is loaded only when one is needed.

    Args:
        library: The tool library.
        spec: Which episodes, and the options of the environment.
        searcher: What answers searches; retrieval with the model of these options if omitted.

    Raises:
        InvalidInputError: The environment refuses an option.
    """

    def __init__(self, library: ToolLibrary, spec: RolloutSpec, searcher: Searcher | None = None) -> None:
        settings = spec.environment
        model = settings.embedding_model
        retriever = default_retriever(library) if model is None else ToolRetriever(library, model)
        planner = resolve_planner(
            settings.planner,
            library,
            settings.law(),
            settings.rules(),
            similar=similar_by_retrieval(retriever) if spec.alternatives else None,
        )
        self.library = library
        self.settings = settings
        self.protocol = settings.protocol
        self.arguments = spec.call_arguments
        self.parameters: ParameterMode = settings.parameters
        self.searcher: Searcher = searcher or retriever
        self.environment = ConversationEnv(settings, library=library, planner=planner, search=self.searcher.search)
        self._spec = spec
        self._flawed_prompts = FlawedPrompts(self.environment, planner, retriever)

    def starts(self, task: Task) -> Iterator[Start]:
        """Yield the starts of a task's episodes, prompt types outermost, then seeds."""
        spec = self._spec
        for prompt, choice in ((prompt, parse_prompt_choice(prompt)) for prompt in spec.prompts):
            flaws = spec.flaws if choice.flaw is None else (choice.flaw,)
            severities = spec.severities if choice.flaw is None else (choice.severity,)
            for seed in range(spec.first_seed, spec.first_seed + spec.seeds):
                if choice.type != FLAWED:
                    yield Start(prompt, seed)
                    continue
                drawn = self._flawed_prompts.draw(task, seed, flaws, severities, choice.method)
                if drawn is not None:
                    yield Start(drawn[0], seed, drawn[1])

    @property
    def tools_column(self) -> list[dict[str, Any]] | str | None:
        """The functions that a native model is offered, in the form of the arguments; None in the text protocol."""
        if self.protocol == "text":
            return None
        return native_tools() if self.arguments == "object" else json.dumps(native_tools())

    def read(self, text: str) -> Message:
        """Return what a message of the text protocol means here."""
        return read_text(text, self.library, self.parameters)
