"""Reading a work order the way a hasty person does: what tells somebody to do something is a step."""

from __future__ import annotations

from resilisim.tasks.wording import clauses

# Verbs that work on data is ordered with. A clause that begins with one is taken for a step; everything else (who asks,
# why, until when, where things lie) is taken for background.
# fmt: off
WORK_VERBS = frozenset(
    {
        "add", "aggregate", "analyse", "analyze", "apply", "archive", "ask", "assemble", "authenticate", "build",
        "cache", "calculate", "capture", "carry", "check", "choose", "classify", "clean", "collect", "combine",
        "compare", "compile", "compress", "compute", "condense", "connect", "convert", "copy", "count", "create",
        "decode", "delete", "deliver", "derive", "detect", "direct", "distribute", "download", "drop", "encode",
        "encrypt", "enqueue", "enrich", "establish", "estimate", "evaluate", "examine", "export", "extract", "feed",
        "fetch", "filter", "find", "forecast", "format", "forward", "gather", "generate", "get", "go", "group", "hand",
        "identify", "import", "index", "inspect", "join", "keep", "let", "list", "load", "log", "look", "map", "mark",
        "measure", "merge", "model", "monitor", "move", "normalise", "normalize", "notify", "obtain", "open",
        "optimise", "optimize", "pack", "parse", "pick", "place", "plan", "poll", "post", "predict", "prepare",
        "publish", "pull", "push", "put", "queue", "rank", "read", "receive", "record", "reduce", "register", "remove",
        "report", "request", "reshape", "restructure", "retrieve", "route", "run", "save", "scan", "schedule", "score",
        "search", "select", "send", "set", "share", "sign", "simulate", "solve", "sort", "split", "standardise",
        "standardize", "store", "submit", "summarise", "summarize", "sync", "synchronise", "synchronize", "tell",
        "test", "track", "transfer", "transform", "translate", "transmit", "turn", "unpack", "update", "upload", "use",
        "validate", "verify", "watch", "write", "zip",
    }
)
# fmt: on
_POLITE_WORDS = frozenset({"please", "kindly", "first", "then", "next", "now", "also", "and", "afterwards", "finally"})


def ordered_steps(work_order: str) -> list[str]:
    """Return the clauses of a work order that tell somebody to do something; all clauses if none seems to.

    Args:
        work_order: The description of a task.
    """
    every = clauses(work_order)
    steps = [clause for clause in every if _is_order(clause)]
    return steps or every


def _is_order(clause: str) -> bool:
    words = ["".join(filter(str.isalpha, word)).lower() for word in clause.split()]
    verb = next((word for word in words if word and word not in _POLITE_WORDS), "")
    return verb in WORK_VERBS
