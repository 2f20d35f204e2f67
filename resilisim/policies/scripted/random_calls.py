"""The random policy: what can be had without looking."""

from __future__ import annotations

import hashlib

from resilisim.envs.session import Info
from resilisim.policies.scripted import messages
from resilisim.seeding import Draws
from resilisim.tool_library import ToolLibrary, default_library

SEARCH_PROBABILITY = 0.1
FINISH_PROBABILITY = 0.05


class RandomPolicy:
    """Runs a uniformly random tool each turn; now and then it searches, or finishes.

    Its choices are a function of its seed and of everything that it has read in the episode, so the same episode gives
    the same messages, whatever ran before.

    Args:
        seed: Seed of the choices.
        library: Tools to choose from; the default library if omitted.
        search_probability: Chance that a turn searches, for the words of a random tool's name.
        finish_probability: Chance that a turn finishes.
    """

    name = "random"
    privileged = False

    def __init__(
        self,
        seed: int = 0,
        library: ToolLibrary | None = None,
        search_probability: float = SEARCH_PROBABILITY,
        finish_probability: float = FINISH_PROBABILITY,
    ) -> None:
        self._seed = seed
        self._names = (library if library is not None else default_library()).names
        self._search_probability = search_probability
        self._finish_probability = finish_probability
        self._history = b""

    def reset(self, observation: str, info: Info) -> None:
        """Forget the last episode."""
        self._history = b""

    def act(self, observation: str, info: Info) -> str | None:
        """Return a random message; the closing message always finishes."""
        read = hashlib.blake2b(self._history + observation.encode("utf-8", "surrogatepass"), digest_size=16)
        self._history = read.digest()
        if messages.is_closing(info):
            return messages.FINISH
        draws = Draws("resilisim/policies/random", self._seed, read.hexdigest())
        kind = draws.uniform()
        if kind < self._finish_probability:
            return messages.FINISH
        tool = draws.choice(self._names)
        if kind < self._finish_probability + self._search_probability:
            return messages.search(tool.replace("_", " "))
        return messages.call(tool)
