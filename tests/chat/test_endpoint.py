"""Addresses and keys of endpoints, and when they are asked again."""

from __future__ import annotations

import pytest

from resilisim.chat import RetryPolicy
from resilisim.chat.middleware import demanded_wait, is_passing
from resilisim.chat.openai import DEFAULT_BASE_URL, endpoint_url, find_endpoint
from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws


def test_waits_stay_within_their_bounds():
    policy = RetryPolicy(retries=100, first_wait=0.5, longest_wait=30.0)
    draws = Draws("test")
    for retry in (1, 2, 3, 6, 7, 100, 5000):
        wait = policy.wait_before_retry(retry, None, draws)
        whole = min(30.0, 0.5 * 2.0 ** min(retry - 1, 60))
        assert whole / 2 <= wait <= whole


def test_a_demanded_wait_is_kept_or_given_up():
    policy = RetryPolicy(longest_demand=120.0)
    assert 120.0 <= policy.wait_before_retry(1, 120.0, Draws("test")) <= 120.5
    assert policy.wait_before_retry(1, 120.5, Draws("test")) is None
    assert 0.0 < policy.wait_before_retry(1, 0.0, Draws("test")) <= 0.5
    with pytest.raises(InvalidInputError, match="retries -1"):
        RetryPolicy(retries=-1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "-7"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:40 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, float("inf")),
        ({"retry-after": "Thu, 99 Jan 999999999999 00:00:40 GMT"}, None),
    ],
)
def test_what_endpoints_ask_to_wait(headers, seconds):
    assert demanded_wait(headers, now=60.0) == seconds


def test_which_statuses_pass():
    assert [status for status in range(300, 600) if is_passing(status)] == [408, 409, 425, 429, *range(500, 600)]


def test_the_address_is_the_one_given_then_the_environments_then_openais(monkeypatch):
    assert endpoint_url() == DEFAULT_BASE_URL
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here:8000/v1/")
    assert endpoint_url() == "http://here:8000/v1"
    assert endpoint_url("https://there") == "https://there"
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert endpoint_url() == DEFAULT_BASE_URL


@pytest.mark.parametrize(
    "address",
    [
        "sk-put-into-the-wrong-place",
        "localhost:8000",
        "ftp://a/b",
        "http://",
        "http://a b/",
        "http://a:x/",
        "http://[::1/v1",
        "http://user:sk-secret@host/v1",
        "https://host/v1?key=sk-secret",
        "https://host/v1#part",
        "",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(address):
    with pytest.raises(InvalidInputError, match="base URL: ") as caught:
        endpoint_url(address)
    assert "sk-" not in str(caught.value)


def test_keys(monkeypatch):
    with pytest.raises(InvalidInputError, match="set OPENAI_API_KEY"):
        find_endpoint()
    assert find_endpoint("http://127.0.0.1:1/v1").key == "none"
    monkeypatch.setenv("OPENAI_API_KEY", " sk-from-the-environment\n")
    assert find_endpoint().key == "sk-from-the-environment"
    assert "sk-" not in repr(find_endpoint())
    assert find_endpoint(api_key="sk-given").key == "sk-given"
    for wrong in ("sk-schlüssel", "sk-two\nlines", "sk-two words"):
        with pytest.raises(InvalidInputError, match="OPENAI_API_KEY: not a key") as caught:
            find_endpoint(api_key=wrong)
        assert "sk-" not in str(caught.value)


def test_excerpts_hold_nothing_that_looks_like_a_key():
    endpoint = find_endpoint(api_key="abc123def456")
    text = "abc123def456 is wrong, sk-proj-x*****Yz too,\nand Bearer xyz; " + "so " * 200
    excerpt = endpoint.excerpt(text)
    assert excerpt.startswith("[key] is wrong, [key] too, and [key] so so")
    assert len(excerpt) == 200
    assert find_endpoint("http://a").without_key("none of it") == "none of it"
    assert find_endpoint("http://a", "EMPTY").without_key("EMPTY") == "EMPTY"
