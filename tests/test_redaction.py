"""Secrets stay inside, and no text from outside steers a terminal."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim import evaluate, redaction
from resilisim.cli.main import _refuse
from resilisim.cli.mcp import _tell_url
from resilisim.cli.output import note, write_json
from resilisim.errors import one_line, shown_value
from resilisim.evaluation import read_records
from resilisim.inputs import error_line, shown
from resilisim.redaction import (
    SECRET_MARK,
    fit_to_show,
    is_secret_name,
    json_without_steering,
    keep_secret,
    without_credentials,
    without_named,
    without_secret_arguments,
    without_secrets,
    without_secrets_in,
)
from resilisim.reporting import write_report
from resilisim.run_folder import JsonLinesWriter, run_manifest
from resilisim.terminal import SafeConsole, plain
from tests.guards import WAITING_SECONDS

STEERING = ("\x1b[2J", "\r", "\x07", "\x9b31m", "\u202e", "\u2066", "\u2028", "\x00", "\U000e0041")


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(redaction, "_known", set())


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-0123456789abcdef",
        "sk-ant-api03-abcdefghijkl",
        "gsk_0123456789abcdefABCD",
        "hf_abcdefghijklmnopqrst",
        "ghp_0123456789abcdefghij",
        "github_pat_0123456789abcdefghij",
        "glpat-0123456789abcdefghij",
        "xoxb-0123456789-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA0123456789abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeK",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc+/=\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_keys_of_common_services_are_known_by_their_form(key):
    assert without_secrets(f"it said {key}.") == f"it said {SECRET_MARK}."
    text = json.dumps({"said": f"it said {key}"})
    assert json.loads(without_secrets(text)) == {"said": f"it said {SECRET_MARK}"}


@pytest.mark.parametrize(
    "text",
    [
        "task-0123456789abcdef",
        "the risk-adjusted_value_of_x",
        "key-value store",
        "max_tokens=64",
        "Bearer authentication",
    ],
)
def test_ordinary_words_are_no_secrets(text):
    assert without_secrets(text) == text == without_named(text)


@pytest.mark.parametrize(
    ("names", "is_secret"),
    [
        (["apiKey", "OPENAI_API_KEY", "--auth-token", "X-Api-Key", "HF_TOKEN", "password"], True),
        (["max_tokens", "--key-file", "tokenizer", "monkey", ""], False),
    ],
)
def test_names_say_what_is_secret(names, is_secret):
    assert [is_secret_name(name) for name in names] == [is_secret] * len(names)


def test_variables_of_the_environment_are_known(monkeypatch, tmp_path):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse")
    monkeypatch.setenv("OTHER_API_KEY", "none")
    monkeypatch.setenv("A_PATH_KEY", str(tmp_path))
    assert without_secrets("correct-horse none") == f"{SECRET_MARK} none"
    assert without_secrets(f"in {tmp_path}") == f"in {tmp_path}"
    monkeypatch.delenv("MY_SERVICE_TOKEN")
    assert without_secrets("correct-horse") == "correct-horse"


def test_short_secrets_are_taken_out_as_whole_words_only():
    keep_secret("abcd", "no", "", "none")
    assert without_secrets("abcd, abcde, no, none") == f"{SECRET_MARK}, abcde, no, none"


def test_credentials_of_urls_are_secret_from_then_on():
    assert without_credentials("http://user:hunter2@host:80/mcp") == f"http://{SECRET_MARK}@host:80/mcp"
    assert without_credentials("http://host/?token=xyzzy9&page=2") == f"http://host/?token={SECRET_MARK}&page=2"
    assert without_secrets("hunter2 is wrong, xyzzy9 too") == f"{SECRET_MARK} is wrong, {SECRET_MARK} too"
    assert without_credentials("http://host/mcp") == "http://host/mcp"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["agent", "--api-key", "hunter2", "--fast"], ["agent", "--api-key", SECRET_MARK, "--fast"]),
        (["agent", "--api-key=hunter2"], ["agent", f"--api-key={SECRET_MARK}"]),
        (["env", "MY_TOKEN=hunter2", "agent"], ["env", f"MY_TOKEN={SECRET_MARK}", "agent"]),
        (["agent", "-H", "X-Key: hunter2"], ["agent", "-H", f"X-Key: {SECRET_MARK}"]),
        (["curl", "-u", "me:hunter2"], ["curl", "-u", f"me:{SECRET_MARK}"]),
        (["agent", "http://me:hunter2@host"], ["agent", f"http://{SECRET_MARK}@host"]),
        (["agent", "0123456789abcdef0123456789abcdef"], ["agent", SECRET_MARK]),
        (["agent", "sk-0123456789abcdef"], ["agent", SECRET_MARK]),
        (
            ["agent", "--max-tokens", "64", "--key-file", "x.pem"],
            ["agent", "--max-tokens", "64", "--key-file", "x.pem"],
        ),
    ],
)
def test_arguments_of_programs(arguments, shown):
    assert without_secret_arguments(arguments) == shown
    if SECRET_MARK in " ".join(shown) and "hunter2" in " ".join(arguments):
        assert without_secrets("hunter2") == SECRET_MARK  # an agent that says it in its last words, say


def test_values_keep_their_form():
    keep_secret("correct-horse")
    value = {"correct-horse": [1, None, {"text": "a correct-horse", "n": 2.5}], "other": "x"}
    assert without_secrets_in(value) == {SECRET_MARK: [1, None, {"text": f"a {SECRET_MARK}", "n": 2.5}], "other": "x"}
    nothing = {"a": ["b"]}
    assert without_secrets_in(nothing) is nothing


@given(st.text(alphabet='ab\\"u0/-é\x1b\n', max_size=30), st.sampled_from(["correct-horse", 'quo"ted\\key/9']))
def test_a_secret_is_found_however_json_escapes_it(around, secret):
    keep_secret(secret)
    text = f"{around} {secret} {around}"
    for _ in range(3):
        assert SECRET_MARK in without_secrets(text)
        text = json.dumps(text)


@given(st.text(max_size=200))
def test_nothing_that_is_shown_steers(text):
    safe = fit_to_show(text + "".join(STEERING))
    assert not [letter for letter in safe if letter in "".join(STEERING) and letter not in "[2J31m"]
    assert "\n" not in fit_to_show(text, one_line=True)
    assert json.loads(json_without_steering(json.dumps(text, ensure_ascii=False))) == text


@pytest.mark.parametrize("bad", STEERING)
def test_every_way_to_a_terminal_escapes(bad, capsys):
    text = f"before {bad} after"
    note(text)
    write_json(json.dumps(text, ensure_ascii=False))
    console = SafeConsole(width=80)
    console.print(text, plain(text))
    with pytest.raises(SystemExit):
        _refuse(text)
    captured = capsys.readouterr()
    words = [one_line(text), shown_value(text), shown(text), error_line(ValueError(text)), captured.out, captured.err]
    assert not [word for word in words if bad in word]


def test_a_token_that_was_just_made_is_told(capsys, monkeypatch):
    """By the one line that is there for it; whoever gave a token need not be told it."""
    monkeypatch.delenv("RESILISIM_TOKEN", raising=False)
    _tell_url("0123456789abcdefghijkl")("http://0.0.0.0:8000")
    assert "Authorization: Bearer 0123456789abcdefghijkl" in capsys.readouterr().err
    note("Authorization: Bearer 0123456789abcdefghijkl")
    assert "0123456789" not in capsys.readouterr().err


def test_lines_and_manifests_hold_no_secret(tmp_path):
    keep_secret("correct-horse")
    with JsonLinesWriter(tmp_path / "lines.jsonl") as writer:
        writer.write({"said": "a correct-horse"})
        writer.write_encoded(b'{"said":"c\\u006frrect-horse"}\n{"other":1}\n')
    assert (
        tmp_path / "lines.jsonl"
    ).read_text() == f'{{"said":"a {SECRET_MARK}"}}\n{{"said":"{SECRET_MARK}"}}\n{{"other":1}}\n'
    manifest = run_manifest({"url": "http://me:pw@host", "name": "correct-horse"})
    assert manifest["arguments"] == {"url": f"http://{SECRET_MARK}@host", "name": SECRET_MARK}


def test_a_key_of_an_agent_stands_nowhere(tmp_path, capfd):
    """In arguments, in what it says, and in the words with which it breaks."""
    code = "import sys; key = sys.argv[2]; sys.exit('no access with ' + key + chr(27) + '[31m')"
    program = f"command:{sys.executable} -c {json.dumps(code)} --api-key hunter2hunter2"

    def leaking(session):
        session.call("hunter2hunter2")
        return "hunter2hunter2"

    out = tmp_path / "run"
    result = evaluate([program], agents=leaking, tasks=1, prompts="optimal", out=out, record_texts="all")
    shown = str(result.table())
    page = write_report(out).read_text()
    written = "".join(file.read_text() for file in out.rglob("*.json*"))
    texts = json.dumps(list(read_records(out)))
    captured = capfd.readouterr()
    for place in (written, shown, page, texts, captured.out, captured.err):
        assert "hunter2hunter2" not in place
        assert "\x1b[31m" not in place
    assert SECRET_MARK in written


def test_a_bug_is_told_without_steering():
    boo = "def boo(**_): raise RuntimeError('\\x1b[2J boo')"
    code = f"from resilisim.cli import main\n{boo}\nmain.app = boo\nmain.main([])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=WAITING_SECONDS
    )
    assert done.returncode == 1
    assert "\\x1b[2J boo" in done.stderr
    assert "\x1b" not in done.stderr
