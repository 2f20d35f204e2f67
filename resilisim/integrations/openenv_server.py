"""ResiliSim as an OpenEnv server: `reset`, `step` and `state` over HTTP and WebSockets, one session a client."""

from __future__ import annotations

import uuid
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

from resilisim.envs.session import Session
from resilisim.envs.settings import EnvironmentSettings, Tools
from resilisim.errors import ResiliSimError
from resilisim.evaluation.episode.play import open_session
from resilisim.tool_library import ToolLibrary

NAME = "resilisim"
MOST_CLIENTS = 64


class ToolAction(Action):
    """A call of a tool; `finish` reports that the task is complete."""

    tool: str = Field(description="Name of the function.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Its arguments by name.")


class ToolObservation(Observation):
    """What the environment says; `functions` stands in the first observation alone, `score` in the last."""

    text: str = Field(description="The prompt, or the answer to the call.")
    ok: bool | None = Field(default=None, description="Whether the call succeeded; none before the first.")
    error: str | None = Field(default=None, description="What went wrong, on one line.")
    turns_left: int = Field(description="Messages that can still be sent.")
    functions: list[dict[str, Any]] | None = Field(
        default=None, description="The functions, as OpenAI's API lists them."
    )
    score: dict[str, Any] | None = Field(default=None, description="The score, once the episode has ended.")


class EpisodeState(State):
    """Where the episode stands; `record` is what `evaluate` would write, once it has ended."""

    seed: int | None = None
    prompt_type: str | None = None
    ended: bool = False
    record: dict[str, Any] | None = None


class ResiliSimEnvironment(Environment):
    """One episode after the other, for one client.

    Args:
        prompt: Prompt type where a reset names none.
        tools: "native": each tool of the library is a function; "discovery": they have to be searched for.
        environment: Law, end rules, `reward` and all else; the benchmark's if omitted.
        library: The tool library; the default one if omitted.
        **options: Options of `EnvironmentSettings`, such as reward="value", in place of those of `environment`.

    Raises:
        InvalidInputError: An argument is unusable.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        prompt: str = "baseline",
        tools: Tools = "native",
        environment: EnvironmentSettings | None = None,
        library: ToolLibrary | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._prompt = prompt
        self._tools = tools
        self._settings = (environment or EnvironmentSettings()).with_options(**options)
        self._library = library
        self._session: Session | None = None
        self._state = EpisodeState()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | dict[str, Any] | None = None,
        prompt: str | None = None,
        **others: Any,
    ) -> ToolObservation:
        """Begin an episode, and return its prompt and its functions; one that was under way is given up.

        Args:
            seed: Episode seed; drawn if omitted, and told by `state`.
            episode_id: A name for the episode.
            task: An id of the benchmark, or a mapping with the fields of a task; drawn from the seed if omitted.
            prompt: Prompt type.
            **others: Not looked at.

        Raises:
            ResiliSimError: An argument is unusable, or the task too large to be solved exactly.
        """
        self._session = None
        episode_seed = uuid.uuid4().int % 2**32 if seed is None else seed
        kind = self._prompt if prompt is None else prompt
        self._session = session = open_session(
            task, episode_seed, kind, self._tools, name="openenv", environment=self._settings, library=self._library
        )
        self._state = EpisodeState(episode_id=episode_id or str(uuid.uuid4()), seed=episode_seed, prompt_type=kind)
        return ToolObservation(text=session.prompt, turns_left=session.turns_left, functions=session.openai_tools())

    def step(self, action: ToolAction, timeout_s: float | None = None, **others: Any) -> ToolObservation:
        """Make a call.

        Raises:
            ResiliSimError: There is no episode, or it is over: an error for the client, never a reward.
        """
        session = self._session
        if session is None or session.ended:
            problem = "has ended" if session is not None else "has not begun"
            raise ResiliSimError(f"the episode {problem}: call reset()")
        result = session.call(action.tool, action.arguments)
        self._state.step_count += 1
        return ToolObservation(
            text=str(result),
            ok=result.ok,
            error=result.error,
            turns_left=session.turns_left,
            done=session.ended,
            reward=session.rewards[-1],
            score=session.score,
        )

    @property
    def state(self) -> EpisodeState:
        """Where the episode stands."""
        session = self._session
        if session is not None and session.ended and self._state.record is None:
            self._state.ended, self._state.record = True, session.record()
        return self._state


def app(max_concurrent_envs: int = MOST_CLIENTS, **options: Any) -> Any:
    """Return the server, a FastAPI application: each client plays in an environment of its own.

    Args:
        max_concurrent_envs: Number of clients at once.
        **options: What `ResiliSimEnvironment` takes.

    Raises:
        InvalidInputError: An argument is unusable.
    """
    ResiliSimEnvironment(**options).reset(seed=0)  # tells a wrong option, and compiles before the first client waits
    return create_app(
        lambda: ResiliSimEnvironment(**options),
        ToolAction,
        ToolObservation,
        env_name=NAME,
        max_concurrent_envs=max_concurrent_envs,
        state_cls=EpisodeState,
    )
