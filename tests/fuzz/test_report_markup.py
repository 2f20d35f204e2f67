"""Whatever stands in a name or a text is text on a page: no field of a record becomes markup, a script or a handler."""

import json
from html.parser import HTMLParser

import pytest

from resilisim import evaluate
from resilisim.evaluation import read_records
from resilisim.evaluation.run.store import check_episode
from resilisim.provenance import encode_json_line
from resilisim.reporting import write_report

PAYLOAD = "\"'><script>alert(1)</script><img src=x onerror=alert(1)><svg/onload=alert(1)>[x](javascript:alert(1))"
# What decides whether a line belongs to the run; another value of these is refused.
KEPT = {"schema", "manifest", "instance_id", "prompt_type", "texts", "salt", "world", "level", "hash", "name"}


class Elements(HTMLParser):
    """Counts elements, and collects attributes that could run something."""

    def __init__(self):
        super().__init__()
        self.count, self.running = {}, []

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        leading = ("href", "src", "action", "formaction", "srcdoc", "xlink:href", "style")
        self.running += [name for name, value in attrs if name.startswith("on")]
        self.running += [name for name, value in attrs if name in leading and "javascript:" in (value or "")]


def parsed(page):
    elements = Elements()
    elements.feed(page)
    return elements


def hostile(value):
    """Return a record with the payload in every text that does not decide whether it is read."""
    if isinstance(value, str):
        return PAYLOAD
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if isinstance(value, dict):
        return {name: item if name in KEPT or name == "policy" else hostile(item) for name, item in value.items()}
    return value


def play(out, text):
    def agent(session):
        session.call(session.tools[0].name, {text: text})
        session.note_usage(1, 1, model=text)
        raise RuntimeError(text)

    agent.__name__ = text
    evaluate("plan-follower", agents=agent, tasks=2, out=out, record_texts="all", prompts=("baseline", "optimal"))
    return out


@pytest.fixture(scope="module")
def num_scripts(tmp_path_factory):
    """How many elements a page has that could hold a script: one that runs, and the data that it reads."""
    return parsed(write_report(play(tmp_path_factory.mktemp("plain") / "run", "plain")).read_text()).count["script"]


@pytest.fixture
def run(tmp_path):
    return play(tmp_path / "run", PAYLOAD)


def test_names_and_words_of_agents_are_text(run, num_scripts):
    elements = parsed(write_report(run).read_text())
    assert elements.count["script"] == num_scripts
    assert "img" not in elements.count
    assert not elements.running
    markdown = run / "report.md"
    write_report(run, markdown=markdown)
    assert "<script>" not in markdown.read_text().replace("\\<script\\>", "")


@pytest.mark.parametrize(
    "field", ["steps", "score", "ended_by", "planner", "task_type", "complexity", "agent", "losses"]
)
def test_a_hostile_field_of_a_record_is_text(run, field, num_scripts):
    records = list(read_records(run))
    lines = []
    for record in records:
        changed = record if field not in record else {**record, field: hostile(record[field])}
        if field == "losses":
            changed = {**record, "losses": {PAYLOAD: 0.5}}
        line = encode_json_line(changed)
        check_episode(line)
        lines.append(line)
    (run / "episodes.jsonl").write_bytes(b"".join(lines))
    page = write_report(run).read_text()
    elements = parsed(page)
    assert elements.count["script"] == num_scripts
    assert "img" not in elements.count
    assert not elements.running
    assert json.dumps(PAYLOAD)[1:-1] not in page
