from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.tool_formats import mcp_definition
from resilisim.worlds.apis import find_api, read_api
from resilisim.worlds.apis.api import (
    ERROR_CODES,
    TIMEOUT_SECONDS,
    PublicApi,
    api_library,
    check_template,
    generated,
    public_apis,
    value_at,
)

HARBOUR: dict[str, Any] = {"name": "harbour", "type": "string"}
TIDES: dict[str, Any] = {
    "name": "tide_fetcher",
    "description": "Fetches the water level of a harbour.",
    "category": "sea",
    "operation": "fetcher",
    "documentation": "https://tides.example",
    "url": "https://tides.example/now/{harbour}",
    "query": {"unit": "{unit}", "v": 2},
    "parameters": [HARBOUR, {"name": "unit", "type": "string", "required": False, "default": "m"}],
    "returns": [{"name": "level", "type": "number", "description": "Water level.", "path": ["tide", 0]}],
    "answer": {"tide": ["<number 0 9 2>"], "harbour": "<given harbour>"},
}


def tides(**changes: Any) -> PublicApi:
    from resilisim.inputs import validated

    return validated(PublicApi, TIDES | changes, "tides")


def test_23_apis_ship_each_with_another_name_a_limit_of_30_seconds_and_no_key() -> None:
    apis = public_apis()
    assert len({api.name for api in apis}) == 23
    assert {api.timeout_seconds for api in apis} == {TIMEOUT_SECONDS}
    assert not any("key=" in json.dumps([api.url, dict(api.query)]).lower() for api in apis)


@pytest.mark.parametrize("api", public_apis(), ids=lambda api: api.name)
def test_an_example_fits_the_schema_and_the_generated_answer_gives_all_documented_values(api: PublicApi) -> None:
    assert check_parameters(api.tool, api.example, "strict") == []
    path, query, _ = api.request(api.example)
    assert "{" not in path + "".join(map(str, query.values()))
    given_values = {one.name: one.default for one in api.parameters} | dict(api.example)
    for number in range(20):
        answer = generated(api.answer, Draws("test", number), given_values)
        assert "<" not in json.dumps(answer)
        assert api.refusal(answer) is None
        output = api.output(json.loads(json.dumps(answer)))
        assert output is not None
        assert list(output) == [value.name for value in api.tool.returns]


def test_the_library_has_valid_mcp_definitions_and_comes_back_from_json() -> None:
    library = api_library()
    assert ToolLibrary.from_json(library.to_json()) == library
    for definition in map(mcp_definition, library):
        Draft202012Validator.check_schema(definition["inputSchema"])
        Draft202012Validator.check_schema(definition["outputSchema"])
    assert {code.code for tool in library for code in tool.failure_errors} == set(ERROR_CODES)


def test_a_request_fills_path_query_and_body_and_quotes_what_a_path_cannot_hold() -> None:
    assert tides().request({"harbour": "St. Malo/Nord"}) == ("/now/St.%20Malo%2FNord", {"unit": "m", "v": 2}, None)
    path, query, body = find_api("post_poster").request({"title": "A", "body": "b"})
    assert (path, query, body) == ("/posts", {}, {"title": "A", "body": "b", "userId": 1})
    _, query, _ = find_api("weather_fetcher").request({"latitude": 1.5, "longitude": 2})
    assert (query["latitude"], query["longitude"]) == (1.5, 2)


ANSWERS = [
    ({"tide": [1.5]}, {"level": 1.5}),
    ({"tide": [2]}, {"level": 2}),
    ({"tide": ["1.5"]}, None),
    ({"tide": [True]}, None),
    ({"tide": [None]}, None),
    ({"tide": []}, None),
    ({"tide": {"0": 1.5}}, None),
    ([1.5], None),
    ("high", None),
    (None, None),
]


@pytest.mark.parametrize(("answer", "output"), ANSWERS)
def test_only_an_answer_of_the_documented_form_gives_an_output(answer: Any, output: Any) -> None:
    assert tides().output(answer) == output


def test_stars_lead_to_the_first_entry_of_an_object() -> None:
    answer = {"rates": {"USD": 1.1, "CHF": 0.9}}
    assert value_at(answer, ("rates", "*")) == 1.1
    assert value_at(answer, ("rates", "*key")) == "USD"


REFUSED = [
    # a place that is left out is no place; an answer of another form is no refusal
    ("place_finder", {"generationtime_ms": 0.2}, "INVALID_INPUT"),
    ("place_finder", "moved", None),
    ("related_word_fetcher", [], "INVALID_INPUT"),
    ("related_word_fetcher", {"words": []}, None),
    ("coin_price_fetcher", {}, "INVALID_INPUT"),
    ("ip_location_fetcher", {"status": "fail", "message": "private range"}, "INVALID_INPUT"),
    ("book_finder", {"numFound": 0, "docs": []}, "INVALID_INPUT"),
]


@pytest.mark.parametrize(("name", "answer", "code"), REFUSED)
def test_a_service_can_refuse_in_an_answer(name: str, answer: Any, code: str | None) -> None:
    refusal = find_api(name).refusal(answer)
    assert (refusal and refusal.code) == code


STATUSES = [(400, "INVALID_INPUT"), (422, "INVALID_INPUT"), (429, "RATE_LIMIT_ERROR"), (404, "OPERATION_FAILED")]
STATUSES += [(500, "OPERATION_FAILED"), (503, "OPERATION_FAILED"), (301, "OPERATION_FAILED")]


@pytest.mark.parametrize(("status", "code"), STATUSES)
def test_statuses_mean_what_they_mean_for_most_services_unless_a_file_says_otherwise(status: int, code: str) -> None:
    assert find_api("joke_fetcher").error_code(status) == code
    assert find_api("country_fetcher").error_code(404) == "INVALID_INPUT"


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"url": "tides.example/now"}, "expected http:// or https://"),
    ({"url": "ftp://tides.example/now"}, "expected http:// or https://"),
    ({"url": "https://{harbour}.example/now"}, "expected http:// or https://"),
    ({"url": "https://tides.example/{harbor}"}, "did you mean 'harbour'?"),
    ({"query": {"unit": "{units}"}}, "did you mean 'unit'?"),
    ({"method": "PUT"}, "method"),
    ({"returns": []}, "returns"),
    ({"returns": [{"name": "level", "type": "float", "description": "x", "path": []}]}, "float"),
    ({"statuses": {"404": "NOT_FOUND"}}, "expected one of TIMEOUT"),
    ({"statuses": {"200": "TIMEOUT"}}, "expected 400 to 599"),
    ({"timeout_seconds": 0}, "timeout_seconds"),
    ({"answer": {"tide": ["<numbr 0 9 2>"]}}, "did you mean 'number'?"),
    ({"answer": {"tide": ["<number 0 9>"]}}, "expected 3 arguments"),
    ({"answer": {"tide": ["<integer a b>"]}}, "expected 2 arguments"),
    ({"answer": {"<given harbor>": 1}}, "did you mean 'harbour'?"),
    ({"answer": ["<one>"]}, "expected at least one argument"),
    ({"parameters": [HARBOUR | {"type": "strin"}]}, "did you mean 'string'?"),
    ({"query": {}, "parameters": [HARBOUR | {"constraints": {"minLenght": 1}}]}, "did you mean 'minLength'?"),
    ({"keys": 1}, "did you mean 'keywords'?"),
    ({"name": "tide\nfetcher"}, "is not a name"),
]


@pytest.mark.parametrize(("changes", "said"), MALFORMED, ids=[said[:30] for _, said in MALFORMED])
def test_a_file_that_describes_no_api_is_refused_in_one_line(changes: dict[str, Any], said: str, tmp_path) -> None:
    path = tmp_path / "tides.json"
    path.write_text(json.dumps(TIDES | changes), encoding="utf-8")
    with pytest.raises(InvalidInputError) as refused:
        read_api(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab<", max_size=4) | st.text("ab>", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_templates_without_placeholders_are_their_own_answers_and_no_answer_breaks_the_reading(value: Any) -> None:
    check_template(value, [])
    assert generated(value, Draws("x"), {}) == value
    for api in (tides(), find_api("coin_price_fetcher"), find_api("book_finder")):
        api.refusal(value)
        api.output(value)


def test_a_word_of_the_twin_is_no_word_that_anybody_guesses() -> None:
    words = {generated("<word>", Draws("test", number), {}) for number in range(3000)}
    assert len(words) == 3000
