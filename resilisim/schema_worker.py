"""Checks values against JSON Schemas of others in a process of its own, which can be ended (`resilisim.schema_check`).

It is run as a file, so it imports nothing of the package. Each line of its input is a job, and one of its output the
answer.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any

_GRACE_SECONDS = 2  # after which a job that nobody has ended ends the process, whoever has started it may be gone


def first_problem(schema: Any, value: Any) -> str | None:
    """Return what a schema says against a value first; None if nothing, or if the schema is none."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = validator_for(schema, Draft202012Validator)
    try:
        kind.check_schema(schema)
        problem = best_match(kind(schema, registry=Registry()).iter_errors(value))  # the registry fetches nothing
    except (
        SchemaError,
        Unresolvable,
        RecursionError,
        ArithmeticError,
        ValueError,
        TypeError,
        AttributeError,
        re.error,
    ):
        return None  # it is no schema, or one that refers to others, elsewhere
    return None if problem is None else str(problem.message)


def _answer(job: Mapping[str, Any]) -> Any:
    if "pattern" in job:
        return re.search(job["pattern"], job["text"]) is not None
    return first_problem(job["schema"], job["value"])


def main() -> None:
    """Answer jobs until there are no more."""
    for line in sys.stdin:
        job = json.loads(line)
        if hasattr(signal, "alarm"):
            signal.alarm(int(job["seconds"]) + _GRACE_SECONDS)
        sys.stdout.write(json.dumps(_answer(job)) + "\n")
        sys.stdout.flush()
        if hasattr(signal, "alarm"):
            signal.alarm(0)


if __name__ == "__main__":
    main()
