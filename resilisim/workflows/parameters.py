"""What a plan passes to a tool: the task's inputs where they fit, else what the step before gave."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from resilisim.tool_library import Parameter, Tool
from resilisim.tool_library.parameters import check_parameters

# Parameters through which the result of one step reaches the next (SPEC section 1, Table 10 of the seed).
FLOWING_PARAMETERS = frozenset({"source", "data"})
# What stands for a text that neither the task nor the step before gives.
UNSTATED_TEXT = "as in the work order"
# Likewise for values of the other types.
_UNSTATED_VALUES: Mapping[str, Any] = {"number": 1, "integer": 1, "boolean": True}


def step_parameters(tool: Tool, inputs: Mapping[str, Any], step_before: str | None) -> dict[str, Any]:
    """Return parameters for a step that the tool's schema accepts.

    Every parameter that the task's inputs name and that fits is passed; every other required one gets its default, its
    first permitted value, a reference to the result of the step before, or a value that says nothing. What the schema
    refuses is left out.

    Args:
        tool: The step's tool.
        inputs: The task's inputs.
        step_before: Tool of the step before, None for the first step.
    """
    stand_ins = _stand_ins(tool, step_before)
    values: dict[str, Any] = {}
    for parameter in tool.parameters:
        name = parameter.name
        if name in inputs and not check_parameters(tool, {name: inputs[name]}, "lenient"):
            values[name] = inputs[name]
        elif name in stand_ins:
            values[name] = _own_copy(stand_ins[name])
    return values


# Checking a value costs more than all the rest, and these depend on no task.
@lru_cache(maxsize=4096)
def _stand_ins(tool: Tool, step_before: str | None) -> Mapping[str, Any]:
    """Return what is passed for required parameters that the inputs don't give, where the schema takes it."""
    values = {parameter.name: _stand_in(parameter, step_before) for parameter in tool.parameters if parameter.required}
    return {name: value for name, value in values.items() if not check_parameters(tool, {name: value}, "lenient")}


def _own_copy(value: Any) -> Any:
    return value.copy() if isinstance(value, (dict, list)) else value


def _stand_in(parameter: Parameter, step_before: str | None) -> Any:
    if parameter.default is not None:
        return parameter.default
    permitted = parameter.constraints.get("enum")
    if permitted:
        return permitted[0]
    flows = parameter.name in FLOWING_PARAMETERS and step_before is not None
    if parameter.type == "object":
        return {"result_of": step_before} if flows else {}
    if parameter.type == "array":
        return []
    if parameter.type == "string":
        return f"result of {step_before}" if flows else UNSTATED_TEXT
    return _UNSTATED_VALUES[parameter.type]
