"""A calculator for formulas that a model wrote: arithmetic and a few functions, nothing that runs code."""

from __future__ import annotations

import ast
import math
import operator
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Final

from resilisim.worlds.base import ToolError

LONGEST_FORMULA: Final = 20_000
_LARGEST: Final = 1e300
_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: math.pow(base, exponent),
}
_UNARY: Final[Mapping[type[ast.unaryop], Callable[[Any], Any]]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": abs,
    "count": lambda *values: len(values),
    "max": max,
    "mean": lambda *values: statistics.fmean(values),
    "median": lambda *values: statistics.median(values),
    "min": min,
    "round": lambda value, digits=0: round(value, int(digits)),
    "sqrt": math.sqrt,
    "sum": lambda *values: math.fsum(values),
}


def calculate(formula: str) -> float:
    """Return the value of a formula.

    Args:
        formula: Numbers, + - * / // % **, parentheses, and calls of `FUNCTIONS`, such as "mean(3, 4.5) * 2".

    Raises:
        ToolError: CALCULATION_ERROR; it is no such formula, or has no finite value.
    """
    if len(formula) > LONGEST_FORMULA:
        raise _failed(f"the formula has {len(formula):,} characters; expected at most {LONGEST_FORMULA:,}")
    try:
        value = _value(ast.parse(" ".join(formula.split()).replace("^", "**"), mode="eval").body)
    except ZeroDivisionError:
        raise _failed(f"{_shown(formula)} divides by zero") from None
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise _failed(f"{_shown(formula)} has no value ({error.args[0] if error.args else 'too deep'})") from None
    return value


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value: Any = float(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            value = _BINARY[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=unary, operand=operand) if type(unary) in _UNARY:
            value = _UNARY[type(unary)](_value(operand))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name.lower() in FUNCTIONS:
            listed = args[0].elts if len(args) == 1 and isinstance(args[0], (ast.List, ast.Tuple)) else args
            value = FUNCTIONS[name.lower()](*[_value(arg) for arg in listed])
        case _:
            expected = f"numbers, + - * / // % **, parentheses and {', '.join(FUNCTIONS)}"
            raise _failed(f"{_shown(ast.unparse(node))} cannot be calculated; expected {expected}")
    if isinstance(value, complex) or not abs(value) < _LARGEST:
        raise _failed("a value is not finite, or too large")
    return float(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _failed(problem: str) -> ToolError:
    return ToolError("CALCULATION_ERROR", problem)
