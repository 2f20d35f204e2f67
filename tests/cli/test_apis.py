from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from resilisim.simulator import load_law
from resilisim.worlds.apis import TwinLaw


@pytest.fixture(scope="module")
def twin(python):
    """The URL of a twin that runs as a process of its own."""
    command = [*python, "-m", "resilisim", "apis", "twin", "--port", "0", "--success", "1", "--latency", "0"]
    # A suite that was started in the background has Ctrl-C switched off, and hands that down.
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    line = process.stderr.readline()
    assert "listening: http://127.0.0.1:" in line
    yield line.split()[1].removesuffix("/HOST/PATH,")
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130


def test_list_shows_all_apis(command):
    listed = command("apis", "list", "--json").json()
    assert len(listed) == 23
    assert {"name", "url", "parameters", "returns"} <= set(listed[0])
    assert "api.open-meteo.com" in command("apis", "list").out


def test_a_call_of_a_served_twin_prints_what_it_returns(command, twin):
    found = command("apis", "call", "country_fetcher", "country_code=PT", "--twin", twin)
    assert found.code == 0
    assert set(json.loads(found.out)) == {"name", "capital", "currency", "population"}
    assert "country_fetcher: success after" in found.err
    again = command("apis", "call", "country_fetcher", "country_code=PT", "--twin", twin, "--json").json()
    assert again["output"] == json.loads(found.out)


def test_a_call_that_fails_leaves_with_3_and_says_what_it_met(command):
    arguments = ["--success", "0", "--latency", "0", "--seed", "3"]
    attempt = next(k for k in range(99) if TwinLaw(0.0, 0.0, seed=3).drawn("0", "joke_fetcher", k)[1] == "400")
    found = command("apis", "call", "joke_fetcher", *arguments, "--attempt", attempt)
    assert found.code == 3
    assert found.err.startswith("joke_fetcher: INVALID_INPUT after 0.")


def test_an_assessment_of_a_served_twin_is_one_table_and_a_folder(command, twin, tmp_path):
    found = command("apis", "assess", "joke_fetcher", "word_fetcher", "--calls", "3", "--twin", twin, "--out", tmp_path)
    assert found.code == 0
    assert "2 APIs: success 1.000" in found.out
    assert "337 (75.2%)" in found.out
    assert sorted(os.listdir(tmp_path)) == ["assessment.json", "calls.jsonl", "law.json", "manifest.json"]
    assert load_law(tmp_path / "law.json").bases == {"joke_fetcher": 1.0, "word_fetcher": 1.0}


REFUSED = [
    (["call", "jokes_fetcher"], "did you mean 'joke_fetcher'"),
    (["call", "weather_fetcher", "latitude"], "expected NAME=VALUE"),
    (["call", "weather_fetcher", "latitud=1"], "did you mean 'latitude'"),
    (["call", "weather_fetcher", "latitude=north"], "expected number"),
    (["call", "weather_fetcher", "latitude=1"], "'longitude' of tool 'weather_fetcher' is missing"),
    (["call", "joke_fetcher", "--live", "--twin", "http://127.0.0.1:1"], "expected one of them"),
    (["call", "joke_fetcher", "--twin", "127.0.0.1:1"], "expected a URL"),
    (["call", "joke_fetcher", "--speed", "2"], "expected --twin URL"),
    (["call", "joke_fetcher", "--success", "2"], "success"),
    (["assess", "joke_fetcher"], "--out"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_cannot_be_done_is_refused_in_one_line(arguments, said, command):
    assert said in command("apis", *arguments).refusal()
