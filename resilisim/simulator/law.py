"""A law as people write it down: the benchmark's constants and the parts that real tools add.

Frozen data without behaviour; `build_problem` turns a law into the numbers that the simulator and the solver read.
Laws are equal by content: two files that say the same are one law, whatever they call it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from annotated_types import Ge, Gt, Le

from resilisim.bounds import Share, check_fields
from resilisim.errors import InvalidInputError, nearest_name, shown_value, unknown_name
from resilisim.inputs import read_json, read_text, shown, validated
from resilisim.provenance import content_hash
from resilisim.yaml_text import read_yaml

Probability = Share
Weight = Annotated[float, Ge(0.0)]
Names = tuple[str, ...]

_STRICT: Mapping[str, str] = {"extra": "forbid"}
_MAX_WINDOW = 60  # messages that a rate limit looks back; they are bits of one number
TICKS_PER_SECOND = 1000  # time is counted in whole milliseconds, so that sums of durations are exact
_MAX_SECONDS = 1e9

# What the codes of the well-known errors say about calling again; a code that stands nowhere is transient.
INPUT_CODES = ("INVALID_INPUT", "FILE_NOT_FOUND", "CALCULATION_ERROR", "OVERFLOW")
ACCESS_CODES = ("PERMISSION_DENIED", "AUTHENTICATION_FAILED")


class _Checked:
    """Checks the bounds that a dataclass's annotations state, also where it is not read from a file."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)  # 1 and 1.0 are one content


@dataclass(frozen=True)
class RateLimit(_Checked):
    """At most `calls` calls in any `window` messages in a row; one more fails surely with RATE_LIMIT_ERROR.

    Attributes:
        calls: Calls that go through; a refused call is none of them.
        window: Messages in a row, the call's own included.
        per: What is counted together: each "tool", each "category", or "all" tools.

    Example:
        >>> from resilisim.simulator import RateLimit
        >>> RateLimit(calls=2, window=5).per
        'tool'
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    calls: Annotated[int, Ge(1), Le(_MAX_WINDOW)]
    window: Annotated[int, Ge(1), Le(_MAX_WINDOW)]
    per: Literal["tool", "category", "all"] = "tool"


@dataclass(frozen=True)
class Outage(_Checked):
    """Groups of tools go down and up together: a Markov chain of two states for each, one step a message.

    The chain is in its long-run distribution when an episode begins. A call while the group is down fails surely with
    SERVICE_UNAVAILABLE, and nothing else fails with that code.

    Attributes:
        begins: Chance that a group that is up is down at the next message.
        ends: Chance that a group that is down is up at the next message.
        groups: "category" (each category is a group), "all" (one group), or names of groups with their tools or
            categories; a tool is in one group at most.

    Example:
        >>> from resilisim.simulator import Outage
        >>> Outage(begins=0.1, ends=0.4).share_down
        0.2
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    begins: Probability
    ends: Probability
    groups: Literal["category", "all"] | Mapping[str, Names] = "category"

    @property
    def share_down(self) -> float:
        """Chance that a group is down of which nothing has been seen; 0 if outages never begin."""
        return self.begins / (self.begins + self.ends) if self.begins > 0.0 else 0.0


@dataclass(frozen=True)
class Broken(_Checked):
    """Some tools never work in an episode, which is drawn when it begins; they show the errors of unlucky ones.

    Attributes:
        probability: Chance that a tool is broken, each on its own.
        tools: Tools or categories that can be; all if None.

    Example:
        >>> from resilisim.simulator import Broken
        >>> Broken(probability=0.1, tools=("network_fetcher",)).probability
        0.1
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    probability: Probability
    tools: Names | None = None


# In which ways an answer that is really given is wrong; too large is one only where it is asked for.
Corruption = Literal["truncated", "missing_field", "stale", "changed_number", "empty", "oversized"]
OVERSIZED: Final = "oversized"
CORRUPTIONS: Final = tuple(kind for kind in get_args(Corruption) if kind != OVERSIZED)


@dataclass(frozen=True)
class Corrupt(_Checked):
    """A call reports success and returns wrong data; only sound outputs of required tools count at the end.

    Calling the tool again replaces its output by a new one, sound or not.

    Attributes:
        probability: Chance that a successful call's output is corrupt.
        shows: Whether whoever reads the "payload" sees it (counts and checksums contradict each other), or only a
            successful call of a validator tells ("validators").
        tools: Tools or categories whose outputs can be corrupt; all if None. Validators' never are.
        validators: Tools that tell of every output so far whether it is sound; those whose operation is validator if
            None.
        kinds: Where calls are really made, in which ways their answers are made wrong: "truncated", "missing_field",
            "stale" (an earlier answer), "changed_number", "empty", "oversized"; all but the last if None. Outputs that
            are made up contradict themselves.

    Example:
        >>> from resilisim.simulator import Corrupt
        >>> Corrupt(probability=0.1).shows
        'payload'
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    probability: Probability
    shows: Literal["payload", "validators"] = "payload"
    tools: Names | None = None
    validators: Names | None = None
    kinds: tuple[Corruption, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse kinds that are none, or stand there twice."""
        super().__post_init__()
        for kind in self.kinds or ():
            if kind not in get_args(Corruption):
                raise unknown_name("kind", kind, get_args(Corruption), "corrupt")
        if self.kinds is not None and not 0 < len(set(self.kinds)) == len(self.kinds):
            raise InvalidInputError(f"kinds of corrupt are {list(self.kinds)}: expected at least one, each once")


@dataclass(frozen=True)
class Drift(_Checked):
    """The base of every tool changes with time.

    Attributes:
        per_message: What each message so far adds to it; the sum stays within 0 and 1.

    Example:
        >>> from resilisim.simulator import Drift
        >>> Drift(per_message=-0.02).per_message
        -0.02
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    per_message: Annotated[float, Ge(-1.0), Le(1.0)]


@dataclass(frozen=True)
class ErrorKinds(_Checked):
    """Errors mean what they say: by its code a failure is transient, of the input, or of access.

    After a transient one calling again draws again. After one of the input the same call fails surely until a parameter
    is changed to another valid value. After one of access the tool stays closed until a tool that opens has succeeded;
    once one has, failures of access no longer happen.

    Attributes:
        transient: Weight of each transient code when the code of a failure is drawn.
        input: Weight of each code of the input.
        access: Weight of each code of access; with `input` and `access` 0 success is drawn as by the benchmark law.
        input_codes: Codes of the input.
        access_codes: Codes of access; every other code is transient.
        opened_by: Tools that open what is closed; those whose operation is authenticator if None.

    Example:
        >>> from resilisim.simulator import ErrorKinds
        >>> ErrorKinds(access=0.0).input_codes[0]
        'INVALID_INPUT'
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    transient: Weight = 1.0
    input: Weight = 1.0
    access: Weight = 1.0
    input_codes: Names = INPUT_CODES
    access_codes: Names = ACCESS_CODES
    opened_by: Names | None = None

    def __post_init__(self) -> None:
        """Refuse a code that would be of two kinds."""
        super().__post_init__()
        for code in self.input_codes:
            if code in self.access_codes:
                raise InvalidInputError(f"{code!r} stands in input_codes and in access_codes: expected one of them")


@dataclass(frozen=True)
class Duration(_Checked):
    """How long a call may take, and how likely that is.

    Example:
        >>> from resilisim.simulator import Duration
        >>> Duration(seconds=2.5, probability=0.9).seconds
        2.5
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    seconds: Annotated[float, Ge(0.0), Le(_MAX_SECONDS)]
    probability: Annotated[float, Gt(0.0), Le(1.0)]

    @property
    def ticks(self) -> int:
        """The duration in whole milliseconds."""
        return round(self.seconds * TICKS_PER_SECOND)


@dataclass(frozen=True)
class Latency(_Checked):
    """Calls take time; messages that call nothing take none.

    Attributes:
        distribution: The durations that a call can have; their probabilities sum to 1.
        timeout: Seconds after which a call fails with TIMEOUT, which takes so long; None: calls are waited for.
        budget: Seconds that an episode has. A call that would last longer than what is left fails with TIMEOUT as the
            time runs out, and only the closing message remains. None: time does not end an episode.

    Example:
        >>> from resilisim.simulator import Duration, Latency
        >>> Latency((Duration(1, 0.9), Duration(60, 0.1)), timeout=30).timeout
        30.0
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    distribution: tuple[Duration, ...]
    timeout: Annotated[float, Gt(0.0), Le(_MAX_SECONDS)] | None = None
    budget: Annotated[float, Gt(0.0), Le(_MAX_SECONDS)] | None = None

    def __post_init__(self) -> None:
        """Refuse probabilities that are no distribution."""
        super().__post_init__()
        total = math.fsum(one.probability for one in self.distribution)
        if abs(total - 1.0) > 1e-9:
            raise InvalidInputError(f"the probabilities of distribution sum to {total:g}: expected 1")


@dataclass(frozen=True)
class LostAnswer(_Checked):
    """Failures can come after the call has run: the work is done, and its answer alone is lost.

    What refuses a call (a limit, an outage, an input or access that is denied) comes before it in any case, and a tool
    that is broken never runs. Nobody is told which of the two a failure was. It makes a difference where a tool must
    not run twice, and where what has run is what counts (`Goal`).

    Attributes:
        share: Chance that any other failure comes after the run; that of a call that took too long likewise.
        tools: Tools or categories of which that holds; all if None.
        checks: For tools the one whose success tells how often they have run. Its own outputs are never corrupt.

    Example:
        >>> from resilisim.simulator import LostAnswer
        >>> LostAnswer(share=0.5, checks={"charge_card": "list_charges"}).share
        0.5
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    share: Probability
    tools: Names | None = None
    checks: Mapping[str, str] = field(default_factory=dict)


CONSTANTS = ("base", "not_executed", "failed", "history")
# Parts that make a difference to tasks of the benchmark, where answers count and any tool may run again.
TASK_PARTS = ("rate_limit", "outage", "broken", "corrupt", "drift", "error_kinds", "latency")
PARTS = (*TASK_PARTS, "lost_answer")


@dataclass(frozen=True)
class Law(_Checked):
    """What decides whether calls succeed, as a law file says it; without arguments the benchmark law.

    Attributes:
        name: What it is called; no part of its content.
        description: What it is for, in a line or two; no part of its content either.
        base: Success probability of a tool whose library entry gives none.
        not_executed: Factor for each dependency never executed.
        failed: Factor for each dependency executed but not yet successful.
        history: Factor for each failed execution so far in the episode.
        bases: Success probabilities of tools by name; they come before the library's own.
        equivalents: Tools that can stand in for a tool in the required list. If there are none, `broken` takes those
            that the library declares.
        errors: Weight of each error code when that of a failure is drawn; of a tool the codes that it documents count.
            Without any, or for a tool that documents none of them, all its codes are equally likely.
        rate_limit: See `RateLimit`; None, here as below, if the law has no such part.
        outage: See `Outage`.
        broken: See `Broken`.
        corrupt: See `Corrupt`.
        drift: See `Drift`.
        error_kinds: See `ErrorKinds`.
        latency: See `Latency`.
        lost_answer: See `LostAnswer`.

    Raises:
        InvalidInputError: A number is out of range.

    Example:
        >>> from resilisim.simulator import Law, RateLimit
        >>> law = Law(base=0.9, rate_limit=RateLimit(calls=2, window=5))
        >>> law.parts, law.is_plain, law == Law.from_mapping(law.to_mapping())
        (('rate_limit',), False, True)
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    name: str = field(default="unnamed", compare=False)
    description: str = field(default="", compare=False)
    base: Annotated[float, Gt(0.0), Le(1.0)] = 0.8
    not_executed: Probability = 0.5
    failed: Probability = 0.7
    history: Probability = 0.9
    bases: Mapping[str, Annotated[float, Gt(0.0), Le(1.0)]] = field(default_factory=dict)
    equivalents: Mapping[str, Names] = field(default_factory=dict)
    errors: Mapping[str, Weight] = field(default_factory=dict)
    rate_limit: RateLimit | None = None
    outage: Outage | None = None
    broken: Broken | None = None
    corrupt: Corrupt | None = None
    drift: Drift | None = None
    error_kinds: ErrorKinds | None = None
    latency: Latency | None = None
    lost_answer: LostAnswer | None = None

    def __post_init__(self) -> None:
        """Refuse bases that are no probabilities."""
        super().__post_init__()
        for tool, base in self.bases.items():
            if not 0.0 < base <= 1.0:
                raise InvalidInputError(f"bases: {tool!r} has {shown_value(base)}: expected above 0 and at most 1")
        for code, weight in self.errors.items():
            if not 0.0 <= weight < math.inf:
                raise InvalidInputError(f"errors: {code!r} has {shown_value(weight)}: expected a weight of at least 0")
        if self.errors and not sum(self.errors.values()) > 0.0:
            raise InvalidInputError("errors has no weight above 0: expected at least one")
        for name in ("bases", "errors"):
            object.__setattr__(self, name, {key: float(value) for key, value in getattr(self, name).items()})

    def __hash__(self) -> int:
        """Return a hash of the content."""
        return hash(self.content_hash)

    def probability(self, base: float, num_not_executed: int, num_failed_dependencies: int, num_failures: int) -> float:
        """Return the success probability of an execution, parts apart; the definition that a table repeats (SPEC 3).

        It is base * 0.5^Nu * 0.7^Nf * 0.9^Nh, where Nu counts the tool's direct dependencies that were never executed
        in this episode, Nf those executed but not yet successful, and Nh every failed execution so far, of all tools.

        Example:
            >>> from resilisim.simulator import Law
            >>> round(Law().probability(0.8, num_not_executed=1, num_failed_dependencies=0, num_failures=2), 3)
            0.324
        """
        value = base
        for _ in range(num_not_executed):
            value *= self.not_executed
        for _ in range(num_failed_dependencies):
            value *= self.failed
        for _ in range(num_failures):
            value *= self.history
        return value

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that the law has beside the benchmark's constants."""
        return tuple(name for name in PARTS if getattr(self, name) is not None)

    @property
    def is_plain(self) -> bool:
        """Whether the law is the benchmark's, up to its four constants."""
        return not (self.parts or self.bases or self.equivalents or self.errors)

    @property
    def has_sections(self) -> bool:
        """Whether it says more than one table of chances can: it has parts, or tools that stand in for others."""
        return bool(self.parts or self.equivalents)

    def error_weight(self, code: str) -> float:
        """Return the weight of an error code in the draw of a failure's code, kinds of errors apart."""
        return self.errors.get(code, 0.0) if self.errors else 1.0

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256, in hex, of what the law says, its name and description apart."""
        return content_hash(self._content())

    @property
    def waiting_can_help(self) -> bool:
        """Whether letting messages pass can make a call more likely to succeed; agents are offered `wait` then."""
        improves = self.drift is not None and self.drift.per_message > 0.0
        return self.rate_limit is not None or self.outage is not None or improves

    @property
    def has_hidden_state(self) -> bool:
        """Whether something matters that agents cannot see: outages, broken tools, unsound outputs, what has run."""
        unseen = self.corrupt is not None and self.corrupt.shows == "validators"
        unseen = unseen or (self.lost_answer is not None and 0.0 < self.lost_answer.share < 1.0)
        return self.outage is not None or self.broken is not None or unseen

    def check_world(self) -> None:
        """Refuse what has no meaning where calls do real work.

        Raises:
            InvalidInputError: The line names it.
        """
        senseless = ""
        if self.equivalents:
            senseless = "equivalents: in a world no tool does what another one does"
        elif self.corrupt is not None:
            senseless = "corrupt: what the tools of a world return is real"
        elif self.error_kinds is not None and self.error_kinds.input > 0.0:
            senseless = (
                f"error_kinds.input is {self.error_kinds.input:g}: expected 0, since in a world a call with another "
                "parameter asks for something else"
            )
        if senseless:
            raise InvalidInputError(f"law {self.name!r:.100} is for no world: {senseless}")

    def to_mapping(self) -> dict[str, Any]:
        """Return the law as it stands in records: the four constants if it is plain, else all of it with its hash."""
        if self.is_plain:
            return self._constants()
        return {"name": self.name, **self._content(), "hash": self.content_hash}

    def _constants(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CONSTANTS}

    def _content(self) -> dict[str, Any]:
        content = self._constants()
        for name in ("bases", "equivalents", "errors", *PARTS):
            value = getattr(self, name)
            if value:
                content[name] = _plain(value)
        return content

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "law") -> Self:
        """Return the law that a mapping says, as `to_mapping` or a law file has it.

        Raises:
            InvalidInputError: It says none, or carries another law's hash.
        """
        content = {name: value for name, value in mapping.items() if name != "hash"}
        law = validated(cls, content, where)
        given = mapping.get("hash", law.content_hash)
        if given != law.content_hash:
            raise InvalidInputError(f"{where}: the hash is {shown_value(given)}: expected {law.content_hash!r}")
        return law


BENCHMARK: Final = Law("benchmark")  # where no other law is named


def _plain(value: Any) -> Any:
    """Return JSON values; what is None is left out."""
    if dataclasses.is_dataclass(value):
        given = ((entry.name, getattr(value, entry.name)) for entry in dataclasses.fields(value))
        return {name: _plain(item) for name, item in given if item is not None}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def law_schema() -> dict[str, Any]:
    """Return the JSON Schema of law files."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(Law).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


LAW_SUFFIXES = (".yaml", ".yml", ".json")


@functools.cache
def shipped_laws() -> tuple[str, ...]:
    """Return the names of the laws that ship with the package.

    Example:
        >>> from resilisim.simulator import shipped_laws
        >>> "meaningful-errors" in shipped_laws()
        True
    """
    folder = resources.files("resilisim.simulator").joinpath("data/laws")
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


def load_law(source: str | float | Path | Law | Mapping[str, Any]) -> Law:
    """Return the law of a name or a file (YAML or JSON, UTF-8), or that a mapping says; a law comes back as it is.

    A number is the law of independent failures: every call passes with that probability, whatever came before.

    Raises:
        InvalidInputError: There is no such law, or the file does not hold one.

    Example:
        >>> import resilisim
        >>> resilisim.load_law("benchmark").to_mapping()
        {'base': 0.8, 'not_executed': 0.5, 'failed': 0.7, 'history': 0.9}
        >>> resilisim.load_law(0.95).to_mapping()
        {'base': 0.95, 'not_executed': 1.0, 'failed': 1.0, 'history': 1.0}
    """
    if isinstance(source, Law):
        return source
    if isinstance(source, Mapping):
        return Law.from_mapping(source)
    if _is_number(source):
        return _independent(source)
    if not isinstance(source, str | Path):
        raise InvalidInputError(f"law is {shown_value(source)}: expected a name, the path of a law file, or a number")
    name = str(source)
    if isinstance(source, str) and name in shipped_laws():
        text = resources.files("resilisim.simulator").joinpath(f"data/laws/{name}.yaml").read_text(encoding="utf-8")
        return _read_law(text, f"law {name}", name)
    path = Path(source)
    if path.suffix not in LAW_SUFFIXES and not path.exists():
        near = nearest_name(name, shipped_laws())
        hint = f"did you mean {near!r}?" if near else f"expected {', '.join(shipped_laws())} or the path of a law file"
        raise InvalidInputError(f"there is no law {name!r:.100}: {hint}")
    return _read_law(read_text(path, "law", "the path of a YAML or JSON file"), str(path), path.stem)


def _is_number(source: object) -> bool:
    """Return whether something is a number; on a command line it is a text, and no file."""
    if not isinstance(source, str):
        return isinstance(source, Real)
    try:
        float(source)
    except ValueError:
        return False
    return not Path(source).exists()


def _independent(source: Any) -> Law:
    """Return the law under which nothing that came before changes the chance of a call."""
    try:
        chance = math.nan if isinstance(source, bool) else float(source)
    except OverflowError:
        chance = math.nan
    if not 0.0 < chance <= 1.0:
        raise InvalidInputError(
            f"law is {shown_value(source)}: expected the chance that a call passes, above 0 and at most 1, such as 0.8"
        )
    return Law(name=f"independent-{chance:g}", base=chance, not_executed=1.0, failed=1.0, history=1.0)


def _read_law(text: str, where: str, name: str) -> Law:
    content = read_json(text, where) if where.endswith(".json") else read_yaml(text, where)
    if not isinstance(content, Mapping):
        raise InvalidInputError(f"{where}: got {shown(content)}; expected a mapping such as 'base: 0.8'")
    return Law.from_mapping({"name": name, **content}, where)
