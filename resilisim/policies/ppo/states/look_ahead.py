"""A trained policy that looks ahead: it tries its best actions some calls deep under the law, and takes the best.

Chance nodes are exact (`transition`): every result of a call, with its probability as agents know it. Where the search
stops, the policy's own value of the state stands for what comes after. States that are met on several ways are one, and
the network looks at those of a whole level at once.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.states.transition import ActsInStates, Reached, States, Transition, merge_places

_MOST_CALLS = 4  # each more takes about three times as long
NUM_CHOICES = 3  # actions that are tried in a state, the most probable ones
_MARGIN = 0.05  # by how much another action has to be worth more than a policy's own choice: its values err that much
_MEMORY = 2**28  # bytes that the states of a level may take


class Judge(Protocol):
    """What chooses, and says what states are worth."""

    @property
    def reads_state_alone(self) -> bool:
        """Whether it reads nothing but what decides what comes after."""
        ...

    def judgements(
        self, observation: dict[str, NDArray[np.generic]], mask: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the probability of every action, (N, num_actions), 0 where it is illegal, and values, (N,)."""
        ...


class LookAhead(ActsInStates):
    """Takes the action that is worth most some calls deep, of those that a policy prefers.

    Args:
        judge: The policy.
        calls: How deep, 1 to 4.
        num_choices: Actions that are tried in each state.
        margin: By how much another action has to be worth more than the most probable one.
    """

    def __init__(self, judge: Judge, calls: int, num_choices: int = NUM_CHOICES, margin: float = _MARGIN) -> None:
        if not 1 <= calls <= _MOST_CALLS:
            raise InvalidInputError(
                f"a look-ahead of {calls} calls: expected 1 to {_MOST_CALLS}, as in policy:default+2"
            )
        self._judge, self._calls, self._num_choices, self._margin = judge, calls, num_choices, margin

    @property
    def reads_state_alone(self) -> bool:
        """Whether it acts the same wherever the same can follow."""
        return self._judge.reads_state_alone

    def act_in(self, transition: Transition, states: States) -> NDArray[np.int64]:
        """Return an action for each state, (num_states,): the most probable one unless another is clearly better."""
        actions, worths = self._worths(transition, states, self._calls)
        worths[:, 0] += self._margin  # of the most probable action
        best: NDArray[np.int64] = actions[np.arange(len(states)), worths.argmax(axis=1)]
        return best

    def _worths(
        self, transition: Transition, states: States, calls: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the preferred actions in each state, and what each is worth, both (num_states, num_choices).

        What an action is worth that is not legal is -1.
        """
        size = max(1, _MEMORY // (transition.state_size * self._num_choices * 8))
        actions, worths = [], []
        for first in range(0, len(states), size):
            some = states[first : first + size]
            chosen, legal, _ = self._preferred(transition, some)
            rows, places = np.nonzero(legal)
            reached = transition.after(some[rows], chosen[rows, places])
            values = reached.success + self._open_values(transition, reached, calls - 1)
            worth = np.full(chosen.shape, -1.0)
            worth[rows, places] = np.bincount(reached.parents, reached.chances * values, len(rows))
            actions.append(chosen)
            worths.append(worth)
        return np.concatenate(actions), np.concatenate(worths)

    def _open_values(self, transition: Transition, reached: Reached, calls: int) -> NDArray[np.float64]:
        """Return what the states are worth from which it goes on, so many calls deep; 0 for the others."""
        values = np.zeros(len(reached.chances))
        if not reached.is_open.any():
            return values
        going_on = reached.states[reached.is_open]
        first, place = merge_places(transition, going_on)
        once = going_on[first]
        own = (
            self._preferred(transition, once)[2] if calls == 0 else self._worths(transition, once, calls)[1].max(axis=1)
        )
        values[reached.is_open] = own[place]
        return values

    def _preferred(
        self, transition: Transition, states: States
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
        """Return the most probable actions, best first, and which are legal, (num_states, num_choices); and values."""
        chosen, legal, values = [], [], []
        for part in transition.parts(len(states)):
            shown, mask = transition.show(states[part])
            probabilities, value = self._judge.judgements(shown, mask)
            order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self._num_choices]
            chosen.append(order)
            legal.append(np.take_along_axis(mask, order, axis=1))
            values.append(np.clip(value, 0.0, 1.0))
        return np.concatenate(chosen), np.concatenate(legal), np.concatenate(values)
