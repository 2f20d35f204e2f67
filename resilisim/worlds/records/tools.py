"""The tools of the records world, under the names of the RP-ReAct paper, and what they really do.

The thirteenth, Finish, is the way in which every episode ends: `finish(answer)`, `<finish>answer</finish>`.
The calculator takes formulas that a model wrote: arithmetic and a few functions, nothing that runs code.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.sandbox import BlockingSandbox, NotJsonError, SandboxLimits, json_value
from resilisim.tool_library import Parameter, ReturnValue, Tool, ToolLibrary
from resilisim.tool_library.parameters import accepts, check_parameters
from resilisim.worlds.base import ToolError
from resilisim.worlds.records.contents import GRAPHS, Records
from resilisim.worlds.records.database import Rows, quoted

SHOWN_ROWS: Final = 200  # of a filtered table
_MOST_VALUES: Final = 10_000  # of a column
DEFAULT_PASSAGES, MOST_PASSAGES = 3, 50
LONGEST_TEXT, LONGEST_CODE = 2_000, 20_000  # characters of a name or condition, and of a program
MOST_COMPARED: Final = 200  # names among which the one that was meant is looked for
LAST_RESULT: Final = "last_result"
_PYTHON_LIMITS: Final = SandboxLimits(shown_characters=20_000)
_COMPARISON: Final = re.compile(r"\s*(.+?)\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*\Z", re.DOTALL)
_NEXT: Final = re.compile(r"(?:,|;|\band\b)\s*", re.IGNORECASE)


def _library() -> ToolLibrary:
    def text(name: str, description: str, most: int = LONGEST_TEXT) -> Parameter:
        return Parameter(name, description=description, constraints={"maxLength": most})

    graph = Parameter("graph_name", description="PaperNet or AuthorNet.", constraints={"enum": list(GRAPHS)})
    keyword = text("keyword", "What is looked for: names, dates, words of the text.")
    count = Parameter(
        "count",
        "integer",
        "How many texts are returned.",
        required=False,
        default=DEFAULT_PASSAGES,
        constraints={"minimum": 1, "maximum": MOST_PASSAGES},
    )
    passages = (ReturnValue("passages", "array", "The texts nearest to the keyword, best first."),)
    rows = (
        ReturnValue("columns", "array", "Names of the columns."),
        ReturnValue("rows", "array", "Values of each row, in the order of the columns."),
        ReturnValue("more", "boolean", "Whether there are more rows than are shown."),
    )
    database = "flights, coffee, airbnb or yelp"

    def tool(name: str, category: str, description: str, *parts: Parameter | ReturnValue, after: str = "") -> Tool:
        return Tool(
            name,
            description,
            tuple(part for part in parts if isinstance(part, Parameter)),
            tuple(part for part in parts if isinstance(part, ReturnValue)),
            dependencies=(after,) if after else (),
            metadata={"category": category, "operation": name},
        )

    return ToolLibrary(
        [
            tool(
                "Calculate",
                "arithmetic",
                "Calculates a formula: numbers, + - * / // % **, parentheses, and the functions sum, mean, median, "
                "min, max, count, abs, sqrt and round.",
                text("formula", "Such as mean(3, 4.5) * 2.", LONGEST_FORMULA),
                ReturnValue("result", "number", "The value of the formula."),
            ),
            tool(
                "RetrieveAgenda",
                "texts",
                "Finds entries of an agenda: who does what, when and where.",
                keyword,
                count,
                *passages,
            ),
            tool(
                "RetrieveScirex",
                "texts",
                "Finds paragraphs of scientific papers, which report results of methods on datasets.",
                keyword,
                count,
                *passages,
            ),
            tool(
                "LoadDB",
                "tables",
                f"Loads a database ({database}) for FilterDB and GetValue, without filters, and tells its columns.",
                text("db_name", f"One of {database}."),
                ReturnValue("row_count", "integer", "Number of rows."),
                ReturnValue("columns", "object", "Type of each column."),
                ReturnValue("example", "object", "Its first row."),
            ),
            tool(
                "FilterDB",
                "tables",
                "Keeps those rows of the loaded database that meet conditions, in addition to earlier filters, and "
                f"shows the first {SHOWN_ROWS}. Where no row is left the filter is not set. LoadDB removes all.",
                text(
                    "condition",
                    "One or more of COLUMN=VALUE, also with !=, <, <=, > or >=, separated by commas; "
                    "values that hold a comma stand in quotes. Such as: Origin=ABC, Distance>500.",
                ),
                ReturnValue("row_count", "integer", "Number of rows that are left."),
                *rows,
                after="LoadDB",
            ),
            tool(
                "GetValue",
                "tables",
                "Returns the values of a column of the loaded database, of all rows that the filters have left.",
                text("column_name", "Name of the column."),
                ReturnValue("row_count", "integer", "Number of rows."),
                ReturnValue("values", "array", f"Their values, at most {_MOST_VALUES:,}."),
                after="LoadDB",
            ),
            tool(
                "LoadGraph",
                "graphs",
                "Loads a graph for NeighbourCheck, NodeCheck and EdgeCheck: PaperNet, of papers that cite each other, "
                "or AuthorNet, of authors who wrote papers together. Several graphs can be loaded.",
                graph,
                ReturnValue("node_count", "integer", "Number of nodes."),
                ReturnValue("edge_count", "integer", "Number of edges."),
                ReturnValue("node_attributes", "array", "What NodeCheck tells."),
                ReturnValue("edge_attributes", "array", "What EdgeCheck tells."),
            ),
            tool(
                "NeighbourCheck",
                "graphs",
                "Lists the neighbours of a node: of a paper those that it cites and those that cite it, of an author "
                "those who wrote with this author.",
                graph,
                text("node", "Title of a paper, or name of an author."),
                ReturnValue("neighbours", "array", "Objects of node and relation (cites, cited by, wrote with)."),
                after="LoadGraph",
            ),
            tool(
                "NodeCheck",
                "graphs",
                "Returns the attributes of a node.",
                graph,
                text("node", "Title of a paper, or name of an author."),
                ReturnValue("attributes", "object", "The attributes by name."),
                after="LoadGraph",
            ),
            tool(
                "EdgeCheck",
                "graphs",
                "Returns the attributes of the edge between two nodes: of a citation where and how often it is made, "
                "of two authors the papers that they wrote together.",
                graph,
                text("node1", "Title of a paper, or name of an author."),
                text("node2", "Title of another paper, or name of another author."),
                ReturnValue("attributes", "object", "The attributes by name."),
                after="LoadGraph",
            ),
            tool(
                "SQLInterpreter",
                "code",
                f"Runs one SELECT in the SQL of DuckDB on the tables {database}; DESCRIBE tells their columns.",
                text("sql", "The query.", LONGEST_CODE),
                *rows,
            ),
            tool(
                "PythonInterpreter",
                "code",
                "Runs Python without files and network and returns what it prints, or else the value of the last line. "
                f"Names stay from call to call. The variable {LAST_RESULT} holds what the last other tool returned.",
                text("code", "The program.", LONGEST_CODE),
                Parameter("variables", "object", "Values that the program finds by name.", required=False, default={}),
                ReturnValue("output", "string", "What was printed."),
            ),
        ],
        "the records world",
    )


@functools.lru_cache(maxsize=1)
def records_library() -> ToolLibrary:
    """Return the library of the twelve tools."""
    return _library()


class RecordsWorkspace:
    """What the tools work on in one episode: which database is loaded, its filters, and the names of Python."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._loaded: str | None = None
        self._filters: list[tuple[str, str, str]] = []
        self._graphs: set[str] = set()
        self._sandbox: BlockingSandbox | None = None
        self._last_result: Mapping[str, Any] | None = None

    def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a tool.

        Raises:
            ToolError: The tool refuses or fails.
        """
        spec = records_library()[tool]
        if not accepts(spec, parameters, "strict"):
            raise ToolError("INVALID_INPUT", "; ".join(check_parameters(spec, parameters, "strict")))
        # "variables" and the like may be left out; null is no value of theirs.
        output = _RUN[tool](self, **parameters)
        if tool != "PythonInterpreter":
            self._last_result = output
        return output

    def close(self) -> None:
        """End the Python process, if there is one."""
        if self._sandbox is not None:
            self._sandbox.close()

    def _calculate(self, formula: str) -> dict[str, Any]:
        value = calculate(formula)
        return {"result": int(value) if value == int(value) and abs(value) < 2**53 else value}

    def _retrieve(self, collection: str, keyword: str, count: int = DEFAULT_PASSAGES) -> dict[str, Any]:
        return {"passages": self._records.find_passages(collection, keyword, count)}

    def _load_db(self, db_name: str) -> dict[str, Any]:
        name = self._known("database", db_name.strip().lower(), self._records.tables)
        self._loaded, self._filters = name, []
        return {"database": name, **self._records.about(name)}

    def _filter_db(self, condition: str) -> dict[str, Any]:
        before = self._filters
        columns = self._records.database.columns(self._database())
        new = [_condition(part, columns) for part in _conditions(condition)]
        self._filters = [*before, *new]
        try:
            shown = self._select("*", rows=SHOWN_ROWS)
            count = self._count() if shown.more else len(shown.rows)
        except ToolError:
            self._filters = before
            raise
        if count == 0:
            self._filters = before
            raise ToolError("NO_ROWS", f"no row meets {condition!r} and the earlier filters; the filter was not set")
        filters = [f"{column}{sign}{value}" for column, sign, value in self._filters]
        return {"database": self._loaded, "filters": filters, "row_count": count, **_shown_rows(shown)}

    def _get_value(self, column_name: str) -> dict[str, Any]:
        columns = self._records.database.columns(self._database())
        column = self._known("column", column_name.strip(), columns)
        selected = self._select(quoted(column), rows=_MOST_VALUES)
        values = [row[0] for row in selected.rows]
        return {"column": column, "row_count": self._count() if selected.more else len(values), "values": values}

    def _load_graph(self, graph_name: str) -> dict[str, Any]:
        about = self._records.about(graph_name)
        self._graphs.add(graph_name)
        return {"graph": graph_name, **about}

    def _neighbours(self, graph_name: str, node: str) -> dict[str, Any]:
        graph, node = self._node(graph_name, node)
        if graph.is_directed():
            related = [(other, "cites") for other in graph.successors(node)]
            related += [(other, "cited by") for other in graph.predecessors(node)]
        else:
            related = [(other, "wrote with") for other in graph.neighbors(node)]
        return {"node": node, "neighbours": [{"node": other, "relation": relation} for other, relation in related]}

    def _node_attributes(self, graph_name: str, node: str) -> dict[str, Any]:
        graph, node = self._node(graph_name, node)
        return {"node": node, "attributes": dict(graph.nodes[node])}

    def _edge_attributes(self, graph_name: str, node1: str, node2: str) -> dict[str, Any]:
        graph, first = self._node(graph_name, node1)
        _, second = self._node(graph_name, node2)
        if not graph.has_edge(first, second):
            if not graph.has_edge(second, first):
                raise ToolError("NOT_FOUND", f"{graph_name} has no edge between {first!r} and {second!r}")
            first, second = second, first
        ends = {"citing": first, "cited": second} if graph.is_directed() else {}
        return {"nodes": [first, second], "attributes": {**ends, **graph.edges[first, second]}}

    def _sql(self, sql: str) -> dict[str, Any]:
        return _shown_rows(self._records.database.query(sql))

    def _python(self, code: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        bound = dict(variables or {})
        try:
            if self._last_result is not None and LAST_RESULT in code:
                bound.setdefault(LAST_RESULT, json_value(self._last_result))
            if self._sandbox is None:
                self._sandbox = BlockingSandbox(_PYTHON_LIMITS)
            result = self._sandbox.run(code, bound)
        except (NotJsonError, InvalidInputError) as problem:
            raise ToolError("INVALID_INPUT", f"parameter 'variables': {problem}") from None
        if result.error is not None:
            raise ToolError("CODE_ERROR", result.observation)
        return {"output": result.output}

    def _database(self) -> str:
        if self._loaded is None:
            raise ToolError("NOT_LOADED", "no database is loaded; call LoadDB first")
        return self._loaded

    def _count(self) -> int:
        return int(self._select("count(*)", rows=1).rows[0][0])

    def _select(self, what: str, rows: int) -> Rows:
        database = self._database()
        types = self._records.database.columns(database)
        tests = [f"{quoted(column)} {sign} CAST(? AS {types[column]})" for column, sign, _ in self._filters]
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        values = [value for *_, value in self._filters]
        # One more than is shown, so that it can be told whether there are more, and all others are never looked up.
        limited = f"SELECT {what} FROM {quoted(database)}{where} LIMIT {rows + 1}"
        return self._records.database.query(limited, values, rows)

    def _node(self, graph_name: str, node: str) -> tuple[Any, str]:
        if graph_name not in self._graphs:
            raise ToolError("NOT_LOADED", f"{graph_name} is not loaded; call LoadGraph first")
        graph = self._records.graphs.named(graph_name)
        name = node.strip()
        if name in graph:
            return graph, name
        words = set(name.split())
        near = (other for other in graph if not words.isdisjoint(other.split()))  # all of them would take long
        raise ToolError(
            "NOT_FOUND", str(unknown_name(f"node of {graph_name}", name[:200], islice(near, MOST_COMPARED)))
        )

    @staticmethod
    def _known(what: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
        if name in known:
            return name
        raise ToolError("NOT_FOUND", str(unknown_name(what, name[:200], known)))


_RUN: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "Calculate": RecordsWorkspace._calculate,
    "RetrieveAgenda": lambda self, **given: self._retrieve("agenda", **given),
    "RetrieveScirex": lambda self, **given: self._retrieve("scirex", **given),
    "LoadDB": RecordsWorkspace._load_db,
    "FilterDB": RecordsWorkspace._filter_db,
    "GetValue": RecordsWorkspace._get_value,
    "LoadGraph": RecordsWorkspace._load_graph,
    "NeighbourCheck": RecordsWorkspace._neighbours,
    "NodeCheck": RecordsWorkspace._node_attributes,
    "EdgeCheck": RecordsWorkspace._edge_attributes,
    "SQLInterpreter": RecordsWorkspace._sql,
    "PythonInterpreter": RecordsWorkspace._python,
}


def _shown_rows(rows: Rows) -> dict[str, Any]:
    return {"columns": list(rows.columns), "rows": rows.rows, "more": rows.more}


def _conditions(text: str) -> list[str]:
    """Divide conditions at commas and "and", but not within quotes; a part without a comparison belongs to a value."""
    parts, start, quote, place = [], 0, "", 0
    while place < len(text):
        letter = text[place]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and re.search(r"[=<>]\s*\Z", text[start:place]):
            quote = letter
        elif (separator := _NEXT.match(text, place)) and _COMPARISON.match(text[separator.end() :].split(",")[0]):
            parts.append(text[start:place])
            start = place = separator.end()
            continue
        place += 1
    return [*parts, text[start:]]


def _condition(text: str, columns: Mapping[str, str]) -> tuple[str, str, str]:
    """Return column, operator of SQL, and value of a condition."""
    match = _COMPARISON.match(text)
    if match is None:
        raise ToolError("INVALID_INPUT", f"condition {text.strip()!r:.100}: expected COLUMN=VALUE, or !=, <, <=, >, >=")
    column, sign, value = match.groups()
    column = column.strip("'\"` ")
    if column not in columns:
        raise ToolError("NOT_FOUND", str(unknown_name("column", column[:100], columns)))
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return column, "=" if sign == "==" else sign, value


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
