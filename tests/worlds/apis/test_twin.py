from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from typing import Any

import pytest

from resilisim.cli.main import app as command_line
from resilisim.errors import InvalidInputError
from resilisim.worlds.apis import Address, ApiClient, Twin, TwinLaw, find_api
from resilisim.worlds.apis.api import public_apis
from resilisim.worlds.apis.api_client import ApiCall
from resilisim.worlds.apis.twin import PUBLISHED_CALLS, PUBLISHED_FAILURES, SUCCESSES

INSTANT = {"median_seconds": 0.0}
SURE = TwinLaw(success=1.0, **INSTANT)


def calls_of(
    law: TwinLaw, names: list[str], count: int, *, start: int = 0, stream: str = "0", speed: float = 60.0
) -> list[ApiCall]:
    async def run() -> list[ApiCall]:
        async with Twin(law, speed=speed) as twin, ApiClient(Address(twin.url, stream, speed)) as client:
            todo = [(find_api(name), number) for name in names for number in range(start, start + count)]
            return await asyncio.gather(*(client.call(api, api.example, number) for api, number in todo))

    return asyncio.run(run())


def test_the_default_law_is_that_of_table_16() -> None:
    assert sum(PUBLISHED_FAILURES.values()) == PUBLISHED_CALLS - SUCCESSES
    law = TwinLaw()
    drawn = [law.drawn("0", "joke_fetcher", number) for number in range(4000)]
    successes = sum(code is None for code, _, _ in drawn)
    assert abs(successes / 4000 - 0.527) < 4 * math.sqrt(0.25 / 4000)
    counted = Counter(code for code, _, _ in drawn if code)
    for code, weight in PUBLISHED_FAILURES.items():
        expected = weight / 448
        error = math.sqrt(expected * (1 - expected) / counted.total())
        assert abs(counted[code] / counted.total() - expected) < 4 * error, code
    seconds = sorted(second for _, _, second in drawn)
    assert abs(math.log(seconds[2000] / 0.4)) < 4 * 0.6 * math.sqrt(math.pi / 2 / 4000)


def test_each_fault_looks_from_outside_as_the_law_means_it() -> None:
    for code in PUBLISHED_FAILURES:
        law = TwinLaw(success=0.0, errors={code: 1.0}, **INSTANT)
        few = 2 if code == "TIMEOUT" else 12
        apis = ["place_finder", "related_word_fetcher", "coin_price_fetcher", "word_fetcher"]
        # Only where calls are to run out of time does the clock hurry: on a busy machine others would, too.
        found = calls_of(law, apis, few, speed=60.0 if code == "TIMEOUT" else 1.0)
        assert {call.error for call in found} == {code}, code


def test_what_a_call_meets_follows_from_stream_api_and_attempt_alone() -> None:
    law = TwinLaw(errors={"INVALID_INPUT": 1.0, "NETWORK_ERROR": 1.0}, **INSTANT)
    names = ["joke_fetcher", "place_finder"]

    def seen(calls: list[ApiCall]) -> dict[tuple[str, int], Any]:
        return {(call.api, call.attempt): (call.error, call.output) for call in calls}

    whole = seen(calls_of(law, names, 12))
    assert seen(calls_of(law, names[::-1], 12)) == whole
    later = seen(calls_of(law, names[:1], 5, start=7))
    assert later == {key: value for key, value in whole.items() if key in later}
    assert seen(calls_of(law, names, 12, stream="another")) != whole
    other_seed = TwinLaw(errors=law.errors, seed=1, **INSTANT)
    assert seen(calls_of(other_seed, names, 12)) != whole


def test_a_question_has_one_answer_and_what_is_random_another_each_time() -> None:
    assert len({json.dumps(call.output) for call in calls_of(SURE, ["place_finder"], 5)}) == 1
    assert len({json.dumps(call.output) for call in calls_of(SURE, ["joke_fetcher"], 5)}) == 5


def test_all_routes_answer_with_what_they_were_asked() -> None:
    found = {call.api: call for call in calls_of(SURE, [api.name for api in public_apis()], 1)}
    assert all(call.ok for call in found.values())
    assert found["post_poster"].status == 201
    assert found["post_poster"].output["title"] == "Today"


def test_an_api_can_have_a_chance_of_its_own() -> None:
    law = TwinLaw(success_of={"joke_fetcher": 0.0}, success=1.0, errors={"INVALID_INPUT": 1.0}, **INSTANT)
    found = calls_of(law, ["joke_fetcher", "word_fetcher"], 3)
    assert [call.ok for call in found] == [False] * 3 + [True] * 3


async def raw(twin: Twin, *requests: bytes) -> list[bytes]:
    """Send requests over one connection and return what comes back for each, head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(twin.url.rpartition(":")[2]))
    answers = []
    try:
        for request in requests:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answers.append(head + await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        answers.append(error.partial)
    finally:
        writer.close()
    return answers


def asked(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_anybody_can_ask_it_without_naming_attempts_and_it_counts_them_itself() -> None:
    async def run() -> tuple[list[bytes], Twin]:
        async with Twin(SURE) as twin:
            path = "/random-word-api.herokuapp.com/word"
            return await raw(twin, asked(path), asked(path), asked(f"/~/0{path}"), asked(f"/~/1{path}")), twin

    answers, twin = asyncio.run(run())
    assert answers[0] == answers[2]
    assert answers[1] == answers[3] != answers[0]
    assert twin.calls == {"word_fetcher": 4}


UNKNOWN = [
    asked("/"),
    asked("/api.ipify.org"[:-1]),
    asked("/api.ipify.org/more"),
    asked("/api.ipify.org/", "DELETE"),
    asked("/~0/x/api.ipify.org/"),
    asked("/jsonplaceholder.typicode.com/posts"),
    asked("/restcountries.com/v3.1/alpha/"),
    b"GARBAGE\r\n\r\n",
]


def test_what_is_no_route_is_told_and_the_connection_goes_on() -> None:
    async def run() -> list[bytes]:
        async with Twin(SURE) as twin:
            return await raw(twin, *UNKNOWN, asked("/api.ipify.org/?format=json"))

    *unknown, known = asyncio.run(run())
    assert len(unknown) == len(UNKNOWN)
    assert all(answer.startswith(b"HTTP/1.1 404") and b"no route" in answer for answer in unknown)
    assert known.startswith(b"HTTP/1.1 200")


def test_a_request_that_is_too_long_or_ends_early_ends_the_connection_only() -> None:
    long_head = b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n"
    long_body = b"POST /jsonplaceholder.typicode.com/posts HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"

    async def run() -> list[list[bytes]]:
        async with Twin(SURE) as twin:
            found = [await raw(twin, long_body)]
            _, writer = await asyncio.open_connection("127.0.0.1", int(twin.url.rpartition(":")[2]))
            writer.write(long_head[:1000])
            writer.close()
            return [*found, await raw(twin, asked("/api.ipify.org/"))]

    refused, served = asyncio.run(run())
    assert refused == [b""]
    assert served[0].startswith(b"HTTP/1.1 200")


def test_a_body_that_is_no_json_leaves_what_it_would_have_said_empty() -> None:
    head = b"POST /jsonplaceholder.typicode.com/posts HTTP/1.1\r\nContent-Length: 3\r\n\r\n"

    async def run() -> list[bytes]:
        async with Twin(SURE) as twin:
            return await raw(twin, head + b"[1]", head + b"{,}")

    assert all(json.loads(answer.partition(b"\r\n\r\n")[2])["title"] == "" for answer in asyncio.run(run()))


def test_a_port_that_is_taken_is_refused() -> None:
    async def run() -> None:
        async with Twin(SURE) as first, Twin(SURE, port=int(first.url.rpartition(":")[2])):
            pass

    with pytest.raises(InvalidInputError, match="cannot be used"):
        asyncio.run(run())


BAD_LAWS: list[tuple[dict[str, Any], str]] = [
    ({"success": 1.5}, "success is 1.5"),
    ({"errors": {"TIMEUOT": 1}}, "did you mean 'TIMEOUT'"),
    ({"errors": {"TIMEOUT": -1}}, "weight of TIMEOUT"),
    ({"errors": {"TIMEOUT": 0}}, "no weight above 0"),
    ({"success_of": {"jokes_fetcher": 0.5}}, "did you mean 'joke_fetcher'"),
    ({"success_of": {"joke_fetcher": 2}}, "success of joke_fetcher"),
]


@pytest.mark.parametrize(("given", "said"), BAD_LAWS)
def test_what_is_no_law_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        TwinLaw(**given)


HOST = "api.open-meteo.com/v1/forecast"


@pytest.mark.parametrize(
    "target",
    [
        *(f"{HOST}?latitude={value}&longitude=5" for value in ("nan", "NaN", "inf", "-Infinity", "1e999", "9" * 4000)),
        "/[::1",
        "~x/999999999999999999/%00",
    ],
)
def test_a_request_that_cannot_be_understood_is_answered_and_told_to_nobody_else(
    target: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> bytes:
        async with Twin(TwinLaw(success=1.0, median_seconds=0.0)) as twin:
            port = int(twin.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /{target} HTTP/1.1\r\n\r\n".encode())
            status = await reader.readline()
            writer.close()
            return status

    assert b" 400 " in (answered := asyncio.run(ask())) or b" 404 " in answered or b" 200 " in answered
    assert not caplog.records
    assert capsys.readouterr().err == ""
    if HOST in target and "9999" not in target:
        assert b" 400 " in answered


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "[" * 100_000, "nan"])
def test_a_number_that_json_does_not_have_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(InvalidInputError, match="parameter 'latitude'"):
        command_line(["apis", "call", "weather_fetcher", f"latitude={value}", "longitude=5"], standalone_mode=False)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://", "http://[::1", "http://127.0.0.1:x", "http://a b/", "http://x:0", "x"]
)
def test_the_address_of_a_twin_that_is_none_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(InvalidInputError, match="expected a URL, such as"):
        Address(url)


def test_a_client_refuses_numbers_that_cannot_be_sent() -> None:
    async def call() -> None:
        async with ApiClient(Address("http://127.0.0.1:9")) as client:
            await client.call(find_api("weather_fetcher"), {"latitude": float("nan"), "longitude": 5.0})

    with pytest.raises(InvalidInputError, match="cannot be sent"):
        asyncio.run(call())
