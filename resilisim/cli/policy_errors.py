"""What a policy of a user's own raises, shown without the frames of this package, which tell its author nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceback import StackSummary, TracebackException

NOTE = "ResiliSim: this was raised in episode"  # how the note begins that names the episode
PACKAGE = Path(__file__).resolve().parents[1]
# What calls the methods of policies and agents.
PLAYING = (PACKAGE / "policies" / "base.py", PACKAGE / "policies" / "llm" / "policy.py")


def print_policy_error(error: Exception) -> bool:
    """Print the frames of a policy, what it raised, and in which episode, on standard error.

    Args:
        error: What was raised.

    Returns:
        False, with nothing printed, if it was not raised by a policy of a user's own: then every frame matters.
    """
    if not any(note.startswith(NOTE) for note in getattr(error, "__notes__", ())):
        return False
    import traceback

    told = traceback.TracebackException.from_exception(error)
    if _has_crossed_processes(told):
        told.stack = traceback.StackSummary()
    else:
        _keep_frames_of_others(told)
        if not told.stack:
            return False  # all frames are this package's: a bug of its own
    sys.stderr.write("".join(told.format()))
    return True


def _has_crossed_processes(told: TracebackException) -> bool:
    """Tell whether the frames are those of waiting for a worker, whose own do not travel with what it raised."""
    return not any(_calls_policies(frame.filename) for frame in told.stack)


def _keep_frames_of_others(told: TracebackException) -> None:
    """Leave the frames after the last one that plays an episode, without those of this package, causes included."""
    told.stack = _own_frames(told.stack)
    for other in (told.__cause__, told.__context__):
        if other is not None:
            _keep_frames_of_others(other)


def _own_frames(stack: StackSummary) -> StackSummary:
    from traceback import StackSummary

    playing = [place for place, frame in enumerate(stack) if _calls_policies(frame.filename)]
    called = stack[playing[-1] + 1 :] if playing else stack
    return StackSummary.from_list(
        [frame for frame in called if not Path(frame.filename).resolve().is_relative_to(PACKAGE)]
    )


def _calls_policies(name: str) -> bool:
    return any(Path(name).name == path.name and Path(name).resolve() == path for path in PLAYING)
