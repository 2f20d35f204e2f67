"""The report in a real browser: it opens without a complaint, its episodes are found, opened, left, and printed."""

import html
from collections.abc import Callable
from pathlib import Path

import pytest

from resilisim import explore
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.texts import opened as texts_opened
from resilisim.evaluation.episode.texts import prompt_of, replies_of, stored
from resilisim.evaluation.run.store import RunStore, read_records
from resilisim.provenance import content_hash, encode_json_line
from resilisim.reporting import write_report
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from tests.doubles.talkers import direct, react
from tests.end_to_end.chromium import Visit, find_chromium, visit
from tests.evaluation.synthetic import synthetic_run
from tests.reporting.agent_records import agent_part

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium here: install one, or name its binary in CHROMIUM"
)

POLICIES = ["plan-follower", "random"]
PAGE_ROWS = 15  # of list.js
PROMPTS = ["baseline", "optimal", "flawed"]
READY = 'await until(() => document.querySelector(".viewer-table tbody tr"));'
SCRIPTS = Path(__file__).with_name("report_scripts.js").read_text(encoding="utf-8")
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><b>bold</b>\u202e"

Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Return the folder of a small real run with its report."""
    folder = tmp_path_factory.mktemp("browser") / "run"
    tasks = sample_tasks(benchmark_tasks(), 8)
    evaluate(POLICIES, tasks, PROMPTS, 2, out=folder, progress=False)
    write_report(folder)
    return folder


@pytest.fixture
def open_page(tmp_path):
    """Return a function that opens a report in a fresh browser."""

    def opening(folder, script=None, **more):
        seen = visit(folder / "report.html", tmp_path / "profile", script, **more)
        assert seen.messages == [], "the page complains in the console"
        return seen

    return opening


@pytest.fixture
def look(open_page):
    """Return a function that runs a script of `report_scripts.js` in a report and returns what it found."""
    return lambda folder, name, values={}, **more: open_page(folder, script_of(name, **values), **more).findings


def script_of(name, **values):
    """Return a script of `report_scripts.js`, with values in place of the words that stand for them."""
    script = dict(part.split("\n", 1) for part in SCRIPTS.split("\n//// ")[1:])[name].replace("READY", READY)
    for word, value in values.items():
        script = script.replace(word, str(value))
    return script


def by_rank(folder):
    """Return the records of a run in the order in which the viewer lists them."""
    return sorted(read_records(folder), key=lambda one: (one["outcome"], -round(one["regret"], 9), one["index"]))


def test_branches_of_an_explored_agent_are_summed_by_their_weight(look, tmp_path):
    folder = tmp_path / "explored"
    row = explore("plan-follower", sample_tasks(benchmark_tasks(), 1), "optimal", out=folder, max_turns=4).rows[0]
    assert row.is_exact
    write_report(folder)
    counts = f"{row.plays} branches, {100 * row.estimate:.1f}% by their weight full successes"
    assert look(folder, "counts") == counts


def test_the_list_is_searched_filtered_and_ordered(run_folder, look):
    records = by_rank(run_folder)
    found = look(run_folder, "list", {"TASK_ID": records[0]["instance_id"]})
    indices = [record["index"] for record in records]
    successes = sum(record["outcome"] for record in records)
    share = f"{100 * successes / len(records):.1f}%"
    assert found["first"]["counts"] == f"{len(records)} episodes, {share} of them full successes"
    assert found["first"]["numbers"] == indices[:PAGE_ROWS]
    assert sorted(found["first"]["options"]) == ["", "plan-follower", "random"]
    chosen = [one for one in records if one["policy"] == "plan-follower" and one["prompt_type"] == "flawed"]
    assert found["filtered"]["numbers"] == [one["index"] for one in chosen][:PAGE_ROWS]
    assert found["filtered"]["counts"].startswith(f"{len(chosen)} of {len(records)} episodes")
    of_task = [one["index"] for one in chosen if one["instance_id"] == records[0]["instance_id"]]
    assert found["searched"]["numbers"] == of_task
    assert found["nothing"] == {"counts": "No episode is like that.", "numbers": [], "hidden": True}
    assert found["ordered"]["numbers"] == list(range(PAGE_ROWS))
    assert found["second"]["numbers"] == list(range(PAGE_ROWS, 2 * PAGE_ROWS))
    by_luck = {record["index"]: record["luck"] for record in records}
    lucks = [by_luck[index] for index in found["unlucky"]["numbers"]]
    assert lucks == pytest.approx(sorted(by_luck.values())[:PAGE_ROWS])


def test_an_episode_is_opened_read_and_left(run_folder, look):
    records = by_rank(run_folder)
    found = look(run_folder, "episode")
    chosen = [record for record in records if record["policy"] == "random"]
    record = chosen[0]
    read = texts_opened(record)
    level = record["score"]["level"].replace("_", " ")
    assert found["listed"] == [f"#episode-{one['index']}&policy=random" for one in chosen[:2]]
    opened = found["opened"]
    assert opened["hash"] == f"#episode-{record['index']}&policy=random"
    assert opened["heading"] == f"Episode #{record['index']}: random under {record['prompt_type']}, {level}"
    assert opened["focus"] == "viewer-heading"
    assert opened["messages"] == [step["message"] or "(nothing was written)" for step in record["steps"]]
    assert opened["replies"] == replies_of(read)
    assert opened["prompt"] == prompt_of(read)
    for texts, step in zip(opened["worth"], record["steps"], strict=True):
        chance, before, action, after, regret, luck = texts
        assert before == f"{step['value'] * 100:.2f}%"
        assert action == f"{step['action_value'] * 100:.2f}%"
        assert after == f"{(step['action_value'] + step['luck']) * 100:.2f}%".replace("-0.00", "0.00")
        assert (chance == "–") == (step["success_probability"] is None)
        if step["regret"] >= 0.0005:
            assert regret == f"{step['regret'] * 100:.2f}"
        if abs(step["luck"]) >= 0.0005:
            assert luck == f"{'+' if step['luck'] > 0 else '−'}{abs(step['luck']) * 100:.2f}"
    costly = [step for step in record["steps"] if step["regret"] >= 0.0005]
    assert len(opened["why"]) == opened["falls"] == len(costly) > 0
    assert all((step["label"] or "").replace("_", " ") in why for step, why in zip(costly, opened["why"], strict=True))
    assert opened["dots"] == len(record["steps"]) + 1
    assert opened["command"] == f"resilisim runs episode run {record['index']}"
    assert record["instance_id"] in opened["text"]
    assert " → ".join(record["required_tools"]) in opened["text"]
    assert found["next"]["hash"] == f"#episode-{chosen[1]['index']}&policy=random"
    assert found["left"]["counts"].startswith(f"{len(chosen)} of {len(records)} episodes")
    assert found["left"]["policy"] == "random"
    assert found["left"]["focus"] == f"#episode-{record['index']}&policy=random"


@pytest.mark.long
def test_what_was_said_is_found_and_shown_turn_by_turn(tmp_path, look):
    tasks = sample_tasks(benchmark_tasks(), 12)
    evaluate([react, direct, "exact-optimum"], tasks, "optimal", 1, out=tmp_path, progress=False)
    write_report(tmp_path)
    records = [texts_opened(record) for record in by_rank(tmp_path)]

    def thoughts(record):
        return " ".join(call["reply"]["text"].lower() for call in record.get("agent", {}).get("calls", ()))

    words = ["insists", "reassurance"]
    wanted = [record for record in records if all(word in thoughts(record) for word in words)]
    record = next(record for record in wanted if record["policy"] == "react")
    found = look(tmp_path, "said", {"NUMBER": record["index"]})
    assert found["found"] == {"atOnce": [], "later": [one["index"] for one in wanted][:PAGE_ROWS]}
    with_agent = [one["index"] for one in records if "agent" in one or "texts" in one]
    assert found["shared"]["later"] == with_agent[:PAGE_ROWS]
    assert found["nothing"]["later"] == []
    said = [
        [["agent", call["reply"]["text"]], ["sent", step["message"]], ["reply", reply]]
        for call, step, reply in zip(record["agent"]["calls"], record["steps"], replies_of(record), strict=True)
    ]
    told = [[one["role"], one["content"]] for one in record["agent"]["messages"][:2]]
    assert found["parts"] == [told + said[0], *said[1:]]
    assert "insists" in found["marks"]
    assert found["folds"][0][0].startswith("Prompt (")
    opens = any(word in told[1][1].lower() for word in ("insists", "network_fetcher"))
    assert found["folds"][1] == [f"What the agent was told ({sum(len(text) for _, text in told):,} characters)", opens]


def test_an_address_opens_an_episode_or_says_that_it_is_not_there(run_folder, look):
    found = look(run_folder, "address", address="#episode-7")
    assert found["heading"].startswith("Episode #7: ")
    assert found["calledBack"] is False
    assert "resilisim runs episode run 999999" in found["missing"]
    assert found["hash"] == "#episodes"
    assert found["lost"] == []


def test_filters_stand_in_the_address(run_folder, look):
    address = "#episodes&policy=random&prompt=flawed&order=index&level=nonsense"
    found = look(run_folder, "filters", address=address)
    listed = [
        [
            one["index"]
            for one in read_records(run_folder)
            if one["policy"] == "random" and one["prompt_type"] in prompts
        ]
        for prompts in (["flawed"], PROMPTS)
    ]
    first, fewer, cleared = found["first"], found["fewer"], found["cleared"]
    assert (first["policy"], first["prompt"], first["query"], first["top"]) == ("random", "flawed", "", True)
    assert first["numbers"] == sorted(listed[0])[:PAGE_ROWS]
    assert fewer["hash"] == "#episodes&policy=random&order=index"
    assert fewer["numbers"] == sorted(listed[1])[:PAGE_ROWS]
    assert (cleared["hash"], cleared["policy"]) == ("#episodes&order=index", "")


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
def test_an_episode_that_an_address_names_is_in_view(run_folder, look, width):
    found = look(run_folder, "in view", address="#episode-5", width=width)
    assert found["scrolled"] > found["height"]
    for place in (found["first"], found["later"]):
        assert 0 <= place["start"] < 40
        assert place["start"] < place["top"] < place["bottom"] < found["height"]


@pytest.mark.long
def test_no_number_of_a_table_lies_beyond_the_edge_of_a_phone(run_folder, look):
    found = look(run_folder, "numbers", width=390)
    assert found["seen"] > 100
    assert found["lost"] == []
    assert found["unnamed"] == []
    assert {"optimal full", "flawed fail"} <= set(found["names"])


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone_and_all_text_stands_out(run_folder, look, scheme):
    flags = (f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",)
    found = look(run_folder, "contrast", width=390, flags=flags)
    assert found["isDark"] == (scheme == "dark")
    for part in (found["list"], found["episode"]):
        assert part["page"] <= part["window"]
        assert part["faint"] == []


def test_hostile_texts_are_shown_and_nothing_more(tmp_path, look):
    folder = tmp_path / "run"
    arguments = {"num_episodes": 6, "policy_names": ["random"], "prompts": ["baseline"], "seeds": [0, 1]}
    with RunStore(folder, arguments, 6) as store:
        for record in synthetic_run(("random",), ("baseline",), num_tasks=3, num_seeds=2):
            steps = [{**step, "message": EVIL, "error": EVIL, "tool": EVIL, "kind": EVIL} for step in record["steps"]]
            own = {"task_type": EVIL, "ended_by": EVIL, "instance_id": EVIL + record["instance_id"], "steps": steps}
            flaw = {"type": EVIL, "severity": EVIL, "method": EVIL, "edits": [{"what": EVIL, "after": EVIL}]}
            evil = {**record, **own, "required_tools": [EVIL], "flaw": flaw, "losses": {EVIL: record["regret"]}}
            said = {"role": EVIL, "content": EVIL}
            reply = {"text": f"{EVIL} <think>{EVIL}", "tool_calls": [], "thoughts": EVIL}
            calls = [{"role": EVIL, "turn": turn, "messages": [0], "reply": reply} for turn in (0, 99)]
            part = agent_part("react", EVIL, record["index"]) | {"first_failure": None, "architecture": EVIL}
            agent = part | {"messages": [said], "calls": calls, "structure": {EVIL: EVIL}, "answer": EVIL}
            evil["texts"] = {"prompt": EVIL, "replies": [EVIL] * len(steps)}
            evil = stored(evil | {"agent": agent})
            store.append_encoded(encode_json_line({**evil, "manifest": content_hash(arguments)}), record["index"])
    write_report(folder)
    found = look(folder, "hostile")
    assert "owned" not in found["title"]
    shown = EVIL.replace("\u202e", "\N{REPLACEMENT CHARACTER}")  # no text turns others around
    assert found["message"] == shown
    assert {one.replace(f"{shown} <think>", "") for one in found["said"]} == {shown}
    assert found["marks"] == sum(one.count("onerror") for one in found["said"]) > 0
    assert found["foreign"] == 0
    assert found["prints"]


@pytest.mark.long
def test_cards_fill_their_rows_at_any_width(run_folder, look):
    rows = look(run_folder, "cards")
    assert len(rows[-1]) > 1
    assert all(abs(hole) < 1 for row in rows for hole in row)


@pytest.mark.long
def test_a_page_can_be_printed_with_an_opened_episode(run_folder, open_page, look, tmp_path):
    paper = tmp_path / "report.pdf"
    flags = (f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    open_page(run_folder, address="#episode-3", flags=flags)
    assert paper.read_bytes().startswith(b"%PDF")
    found = look(run_folder, "printed")
    assert found == {"left": 0, "before": [False, False], "after": [True, False]}


def test_without_a_script_the_page_says_what_to_do(run_folder, tmp_path):
    # A frame that may not run scripts shows what a browser shows that does not run them.
    framed = html.escape((run_folder / "report.html").read_text(encoding="utf-8"))
    page = tmp_path / "framed.html"
    page.write_text(f'<body><iframe sandbox="allow-same-origin" srcdoc="{framed}"></iframe></body>', encoding="utf-8")
    script = script_of("no script")
    found = visit(page, tmp_path / "profile", script).findings
    assert "The list of episodes needs JavaScript, which is off here." in found
    assert "resilisim runs episode run NUMBER" in found


def test_complaints_of_a_page_are_noticed(run_folder, tmp_path):
    # What the other tests rest on: an error, and a script that the page's policy refuses, reach the list of messages.
    script = script_of("complaints")
    seen = visit(run_folder / "report.html", tmp_path / "profile", script)
    assert "owned" not in seen.findings
    assert any("a complaint" in message for message in seen.messages)
    assert any("Content Security Policy" in message for message in seen.messages)
