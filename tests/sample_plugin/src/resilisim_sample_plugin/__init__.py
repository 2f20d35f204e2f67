"""A policy that imports nothing of ResiliSim: two methods are all that is asked of it."""


class FirstHitPolicy:
    """Searches once, runs the first tool that was found until it succeeds, and reports completion."""

    name = "first-hit"

    def __init__(self, query: str = "file operations reader") -> None:
        """Set what is searched for."""
        self.query = query
        self.tool: str | None = None

    def reset(self, observation, info):
        """Forget the last episode."""
        self.tool = None

    def act(self, observation, info):
        """Return the next message."""
        if info.get("search"):
            self.tool = info["search"][0]["name"]
        if self.tool is None:
            return f"<tool_search>{self.query}</tool_search>"
        execution = info.get("execution")
        if execution is not None and execution["success"]:
            return "<finish/>"
        return f"<tool_call>{self.tool}</tool_call>"


class LegacyPolicy:
    """What a policy must not look like: `act` is missing."""

    def reset(self, observation, info):
        """Begin an episode."""


def describe():
    """Return something that is not a policy."""
    return "not a policy"
