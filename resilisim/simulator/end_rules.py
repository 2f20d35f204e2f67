"""The rules that end an episode, apart from the agent's own signal; `state.record_turn` keeps count of them."""

from __future__ import annotations

from dataclasses import dataclass

from resilisim.errors import MAX_TURNS, InvalidInputError, check_integer


@dataclass(frozen=True, slots=True)
class EndRules:
    """The rules that end an episode, apart from the agent's own completion signal.

    Attributes:
        max_turns: Messages that an agent has; one more, the closing message, executes nothing.
        max_consecutive_failures: Failed executions without a successful one between them that end the episode; 0 turns
            the rule off.
        loop_length: Unproductive messages in a row that are the same and end the episode; 0 turns the rule off.

    Raises:
        InvalidInputError: A number under which no episode could be played.

    Example:
        >>> from resilisim.simulator import EndRules
        >>> EndRules(max_turns=20).to_mapping()
        {'max_turns': 20, 'max_consecutive_failures': 5, 'loop_length': 4}
    """

    max_turns: int = 10
    max_consecutive_failures: int = 5
    loop_length: int = 4

    def __post_init__(self) -> None:
        """Refuse numbers that no episode could be played under."""
        for name, least in (("max_turns", 1), ("max_consecutive_failures", 0), ("loop_length", 0)):
            # Also where NumPy's integers were given: compiled code and JSON want Python's.
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least, MAX_TURNS))
        if self.loop_length == 1:
            raise InvalidInputError("loop_length is 1: expected 0 (off) or at least 2")

    def to_mapping(self) -> dict[str, int]:
        """Return the rules as they stand in every record."""
        return {name: getattr(self, name) for name in self.__slots__}
