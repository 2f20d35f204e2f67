"""How reliable APIs are: each called so often, success with its interval, latencies, kinds of failure.

The ResiliBench paper takes an API in if it fails sometimes and its latency varies (section 3.4), without saying how
much is much; what is asked here stands in `is_selected` (docs/decisions). Calls are lines of a run folder, so an
assessment that was stopped is resumed, and each call is made once.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.bounds import Count, checked
from resilisim.errors import InvalidInputError
from resilisim.provenance import content_hash, encode_json
from resilisim.redaction import without_credentials
from resilisim.run_folder import RunFolder, write_file_atomically
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import clopper_pearson, clustered_proportion, fields_to_json, to_json
from resilisim.tool_library.parameters import check_parameters
from resilisim.worlds.apis.api import ERROR_CODES, PublicApi
from resilisim.worlds.apis.api_client import Address, ApiCall, ApiClient, reached
from resilisim.worlds.apis.twin import TwinLaw

CALLS_NAME = "calls.jsonl"
TABLE_NAME = "assessment.json"
PERCENTILES = (50, 90, 99)
STREAM = "assess"
LEAST_VARIATION = 0.25  # of the interquartile range, as a share of the median
PACE_SECONDS = 0.01  # between the beginnings of calls: many at once would wait for this machine, and not for a service
UNANSWERED_CODES = ("TIMEOUT", "NETWORK_ERROR")  # what says nothing about how long an answer takes


@dataclass(frozen=True, slots=True)
class ApiReliability:
    """What the calls of one API say about it.

    Attributes:
        api: Its name.
        calls: Number of calls.
        successes: How many succeeded.
        low: Lower end of the exact 95% interval of the success rate.
        high: Upper end.
        seconds: Percentiles of the time until an answer came (`PERCENTILES`), of answers only; NaN without any.
        variation: Interquartile range of these times, as a share of their median; NaN with fewer than two.
        errors: Number of failures by code.
    """

    api: str
    calls: int
    successes: int
    low: float
    high: float
    seconds: tuple[float, ...]
    variation: float
    errors: Mapping[str, int] = field(hash=False)

    @property
    def rate(self) -> float:
        """Share of calls that succeeded; NaN without calls."""
        return self.successes / self.calls if self.calls else math.nan

    @property
    def is_selected(self) -> bool:
        """Whether it sometimes fails, sometimes succeeds, and its latency varies by a quarter of the median."""
        return 0 < self.successes < self.calls and self.variation >= LEAST_VARIATION


@dataclass(frozen=True, slots=True)
class Assessment:
    """What all calls say.

    Attributes:
        apis: One row for each API.
        success: Success rate of all calls, with APIs as the units that vary.
        errors: Number of failures by code, in the order of table 16.
    """

    apis: tuple[ApiReliability, ...]
    success: Estimate
    errors: Mapping[str, int] = field(hash=False)

    def to_mapping(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        rows = [fields_to_json(row) | {"rate": to_json(row.rate), "selected": row.is_selected} for row in self.apis]
        return {"apis": rows, "success": self.success.to_mapping(), "errors": dict(self.errors)}


def assessed(calls: Iterable[Mapping[str, Any]]) -> Assessment:
    """Return what recorded calls say; each has "tool", "error" (None for a success) and "seconds"."""
    by_api: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        by_api.setdefault(str(call["tool"]), []).append(call)
    rows = tuple(_row(name, by_api[name]) for name in sorted(by_api))
    total = sum((Counter(row.errors) for row in rows), Counter[str]())
    success = clustered_proportion([row.successes for row in rows], [row.calls for row in rows])
    return Assessment(rows, success, {code: total[code] for code in ERROR_CODES if total[code]})


def _row(name: str, calls: Sequence[Mapping[str, Any]]) -> ApiReliability:
    errors = Counter(str(call["error"]) for call in calls if call["error"] is not None)
    successes = len(calls) - errors.total()
    low, high = clopper_pearson(successes, len(calls))
    times = np.array([call["seconds"] for call in calls if call["error"] not in UNANSWERED_CODES])
    seconds = tuple(float(number) for number in np.percentile(times, PERCENTILES)) if times.size else ()
    quarter, median, three_quarters = np.percentile(times, (25, 50, 75)) if times.size > 1 else (math.nan,) * 3
    variation = float((three_quarters - quarter) / median) if median > 0 else math.nan
    counted = {code: errors[code] for code in ERROR_CODES if errors[code]}
    return ApiReliability(
        name, len(calls), successes, low, high, seconds or (math.nan,) * len(PERCENTILES), variation, counted
    )


def assess(
    apis: Sequence[PublicApi],
    calls: int = 20,
    *,
    address: Address | None = None,
    law: TwinLaw | None = None,
    out: Path | str,
    per_host: int = 4,
    tell: Callable[[int], None] = lambda done: None,
) -> Assessment:
    """Call each API so often, with its example's parameters, and say how reliable it is.

    Args:
        apis: The APIs.
        calls: Calls of each.
        address: Where calls go, `Address()` for the real hosts; if omitted, a twin is started.
        law: The law of the twin that is started.
        out: Folder of the calls (`calls.jsonl`) and the figures (`assessment.json`); the same call resumes it.
        per_host: Calls of one host at a time.
        tell: Is called with the number of calls that are done, after each.

    Raises:
        InvalidInputError: No API is named, or a number is out of range.
        StoreError: The folder holds something else, or cannot be written.
    """
    if not apis:
        raise InvalidInputError("no API to assess: expected at least one")
    calls = checked(Count, "calls", calls)
    law = law or TwinLaw()
    arguments = {
        "assess": {api.name: content_hash(fields_to_json(api))[:16] for api in apis},
        "calls": calls,
        "where": "its own twin" if address is None else without_credentials(address.twin) or "the real hosts",
        "law": fields_to_json(law) if address is None else None,
    }
    with RunFolder(out, arguments, CALLS_NAME) as folder:
        lines: list[Mapping[str, Any]] = []
        folder.lines.resume(lines.append)
        done = {(line["tool"], line["attempt"]) for line in lines}
        waiting = [(api, k) for k in range(calls) for api in apis if (api.name, k) not in done]

        def keep(call: ApiCall) -> None:
            lines.append(call_record(call))
            folder.lines.write(lines[-1])
            tell(len(lines))

        tell(len(lines))
        try:
            if waiting:
                asyncio.run(_called(waiting, address, law, per_host, keep))
        except ExceptionGroup as several:  # a full disk, of which the first call says what all say
            raise several.exceptions[0] from None
        assessment = assessed(lines)
        write_file_atomically(Path(out) / TABLE_NAME, encode_json(assessment.to_mapping(), indent=1) + b"\n")
    return assessment


def call_record(call: ApiCall) -> dict[str, Any]:
    """Return a call as a line of a file: what is called, what came of it, how long it took; outputs are left out."""
    return {
        "tool": call.api,
        "attempt": call.attempt,
        "parameters": dict(call.parameters),
        "success": call.ok,
        "error": call.error,
        "message": call.message,
        "status": call.status,
        "seconds": round(call.seconds, 6),
    }


async def _called(
    waiting: Sequence[tuple[PublicApi, int]],
    address: Address | None,
    law: TwinLaw,
    per_host: int,
    keep: Callable[[ApiCall], None],
) -> None:
    async with (
        reached(address, law) as address_reached,
        ApiClient(replace(address_reached, stream=STREAM), per_host) as client,
        asyncio.TaskGroup() as group,
    ):
        for api in {api.name: api for api, _ in waiting}.values():
            check_parameters(
                api.tool, api.example, "strict"
            )  # the first check takes long, and would be some call's time
        for api, attempt in waiting:
            group.create_task(_one(client, api, attempt, keep))
            await asyncio.sleep(PACE_SECONDS)


async def _one(client: ApiClient, api: PublicApi, attempt: int, keep: Callable[[ApiCall], None]) -> None:
    keep(await client.call(api, api.example, attempt))
