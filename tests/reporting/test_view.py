"""`resilisim view`: which runs it finds, how far they are, what two agents are to each other; over real HTTP."""

import http.client
import json
import threading
from contextlib import contextmanager
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from resilisim.evaluation import evaluate, read_records
from resilisim.provenance import content_hash, encode_json_line
from resilisim.reporting.view.pages import link
from resilisim.reporting.view.server import ViewServer
from resilisim.reporting.view.side_by_side import gone_on, pairs_of, shown_episode
from resilisim.reporting.view.viewed_runs import RunWatch
from resilisim.tasks.benchmark import find_task

EVIL = "<img src=x onerror=alert(1)>"
POLICIES = ["plan-follower", "repairing-follower"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two runs, one of them deeper."""
    folder = tmp_path_factory.mktemp("runs")
    evaluate(POLICIES, 8, ["optimal", "flawed"], 2, out=folder / "followers", progress=False)
    evaluate("random", 8, ["optimal"], 1, out=folder / "deep" / "random", progress=False)
    return folder


@contextmanager
def serving(folder):
    """Serve a folder whose runs have all been read."""
    with ViewServer(folder) as server:
        server.watch.update()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server, address, method="GET", **headers):
    """Return status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, address, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found.append(dict(attributes)["href"])


def links_of(text):
    reader = _Links()
    reader.feed(text)
    return reader.found


def test_every_link_of_the_pages_leads_somewhere(folder):
    with serving(folder) as server:
        waiting, seen = ["/"], set()
        while waiting:
            address = urlsplit(waiting.pop())._replace(fragment="").geturl()
            kind = (urlsplit(address).path, "optimum" in address)
            if not address or address in seen or sum(urlsplit(each).path == kind[0] for each in seen) >= 6:
                continue
            seen.add(address)
            status, _, text = get(server, address)
            assert status == 200, (address, text[-2000:])
            waiting += [link for link in links_of(text) if link.startswith("/")]
    assert {urlsplit(each).path for each in seen} == {"/", "/report", "/compare", "/episodes", "/optimum"}


def test_a_run_grows_while_it_is_watched(folder, tmp_path):
    source, target = folder / "followers", tmp_path / "run"
    target.mkdir()
    (target / "manifest.json").write_bytes((source / "manifest.json").read_bytes())
    watch = RunWatch(tmp_path)
    watch.update()
    run = watch.runs["run"]
    assert (run.state, len(run.episodes), run.num_planned) == ("under way", 0, 64)
    lines = (source / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    episodes = target / "episodes.jsonl"
    for written in (b"".join(lines[:10]) + lines[10][:50], b"".join(lines[:11])):  # one line is torn for a while
        episodes.write_bytes(written)
        watch.update()
    assert (run.state, len(run.episodes), run.problem) == ("under way", 11, None)
    with episodes.open("ab") as stream:
        stream.writelines(lines[11:])
    watch.update()
    assert run.state == "finished"
    assert [run.record(each["index"]) for each in read_records(source)] == [*read_records(source)]
    assert [(row.policy, row.num_episodes) for row in run.rows] == [(name, 16) for name in POLICIES for _ in range(2)]


def test_pairs_are_on_the_same_draws_and_part_where_messages_differ(folder):
    watch = RunWatch(folder)
    watch.update()
    run = watch.runs["followers"]
    pairs = pairs_of(run, POLICIES[0], run, POLICIES[1], None)
    assert len(pairs) == 32
    for pair in pairs:
        a, b = run.record(pair.a.number), run.record(pair.b.number)
        assert (a["instance_id"], a["seed"], a["prompt_type"]) == (b["instance_id"], b["seed"], b["prompt_type"])
        until = len(a["steps"]) if pair.parting is None else pair.parting - 1
        assert [step["success"] for step in a["steps"][:until]] == [step["success"] for step in b["steps"][:until]]
    differ = [pair.a.outcome != pair.b.outcome for pair in pairs]
    assert differ == sorted(differ, reverse=True)


@pytest.mark.parametrize("turn", [1, 3])
def test_the_optimum_goes_on_from_a_turn(folder, turn):
    watch = RunWatch(folder)
    watch.update()
    run = watch.runs["followers"]
    for episode in [*run.episodes.values()][:12]:
        record = run.record(episode.number)
        if len(record["steps"]) < turn:
            continue
        again = gone_on(run, record, turn, find_task, None)
        assert again["steps"][: turn - 1] == record["steps"][: turn - 1]
        assert all(step["regret"] < 1e-9 for step in again["steps"][turn - 1 :])
        best = shown_episode(run, record, None).turns[turn - 1].step["best"]
        if record["steps"][turn - 1]["regret"] > 1e-9:
            assert best != record["steps"][turn - 1]["message"]


def test_only_this_machine_is_answered_and_nothing_but_get(folder):
    with serving(folder) as server:
        assert server.server_address[0] == "127.0.0.1"
        for host in ("evil.example", f"evil.example:{server.server_port}", ""):
            assert get(server, "/", Host=host)[0] == 403
        assert get(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
        assert get(server, "/", "POST")[0] == 501
        status, headers, text = get(server, "/")
        assert status == 200
        assert "script-src 'sha256-" in text.replace("&#39;", "'")
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "address",
    [
        "/report?run=../../etc",
        "/report?run=/etc/passwd",
        "/compare?a=followers&agent_a=nobody&b=followers&agent_b=plan-follower",
        "/episodes?a=followers&agent_a=plan-follower&b=followers&agent_b=plan-follower&of_a=0&of_b=x",
        "/episodes?a=followers&agent_a=plan-follower&b=followers&agent_b=plan-follower&of_a=0&of_b=63",
        "/optimum?run=followers&episode=0&turn=99",
        "/optimum?run=followers&episode=999999&turn=1",
        f"/report?run={EVIL.replace(' ', '%20')}",
        "/" + "x" * 3000,
        "/?" + "&".join(f"a{number}=1" for number in range(50)),
    ],
)
def test_what_is_not_there_is_answered_in_a_line_without_markup(folder, address):
    with serving(folder) as server:
        status, _, text = get(server, address)
    assert status == 404
    assert 'class="warning"' in text
    assert "<img" not in text


def test_hostile_and_broken_folders_change_nothing(folder, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "episodes.jsonl").write_text("{}\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text(json.dumps({"schema": "another", "arguments": {}}))
    (tmp_path / "link").symlink_to(folder / "followers")
    hostile = tmp_path / EVIL
    evaluate("plan-follower", 3, ["optimal"], 1, out=hostile, progress=False)
    manifest = json.loads((hostile / "manifest.json").read_text())
    manifest["arguments"] |= {"policy_names": [EVIL], "prompts": [EVIL]}
    manifest |= {"hash": content_hash(manifest["arguments"]), "created": EVIL}
    (hostile / "manifest.json").write_text(json.dumps(manifest))
    records = [*read_records(hostile)]
    for record in records:
        record |= {"policy": EVIL, "prompt_type": EVIL, "manifest": manifest["hash"], "ended_by": EVIL}
        record["steps"][0] |= {"message": EVIL, "tool": EVIL, "label": EVIL, "regret": 0.5, "error": EVIL}
    (hostile / "episodes.jsonl").write_bytes(b"".join(map(encode_json_line, records)))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with serving(tmp_path) as server:
        assert {name: run.state for name, run in server.watch.runs.items()} == {"broken": "broken", EVIL: "finished"}
        run = {"a": EVIL, "agent_a": EVIL, "b": EVIL, "agent_b": EVIL}
        for address in (
            "/",
            link("/report", run=EVIL),
            link("/compare", **run),
            link("/episodes", **run, of_a=0, of_b=0, choice="all"),
        ):
            status, _, text = get(server, address)
            assert status == 200
            assert "<img" not in text
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_no_code_that_a_folder_names_is_loaded(folder, tmp_path):
    import sys

    run_folder = tmp_path / "run"
    evaluate("plan-follower", 2, ["optimal"], 1, out=run_folder, progress=False)
    watch = RunWatch(tmp_path)
    watch.update()
    run = watch.runs["run"]
    record = run.record(0)
    run.manifest = {**run.manifest, "arguments": {**run.arguments, "policies": ["antigravity:x"]}}
    run.manifest["arguments"]["environment"]["world"] = "antigravity:world"
    assert "no world of this package" in shown_episode(run, record, None).problem
    assert "antigravity" not in sys.modules
    touched = tmp_path / "touched"
    server = {"command": sys.executable, "args": ["-c", f"open({str(touched)!r}, 'w')"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"x": server}}), encoding="utf-8")
    run.manifest["arguments"]["environment"]["world"] = f"mcp:{tmp_path / 'mcp.json'}?Who?"
    assert "or starts programs" in shown_episode(run, record, None).problem
    assert not touched.exists()


def test_runs_are_filtered_by_words_agents_and_state_in_the_address(folder):
    with serving(folder) as server:
        for query, names in {
            "": ["followers", "deep/random"],
            "words=RANDOM": ["deep/random"],
            "agent=plan-follower": ["followers"],
            "state=stopped": [],
            "order=name": ["deep/random", "followers"],
            "state=no&order=no": ["followers", "deep/random"],
        }.items():
            text = get(server, f"/?{query}")[2]
            shown = [name for name in ("followers", "deep/random") if f'">{name}</a>' in text]
            assert sorted(shown) == sorted(names), query


def test_a_form_leads_to_the_address_of_a_comparison(folder):
    with serving(folder) as server:
        status, headers, _ = get(server, "/compare?a=followers%0Aplan-follower&b=followers%0D%0Arepairing-follower")
        assert status == 303
        text = get(server, headers["Location"])[2]
    assert any(words in text for words in ("is better than", "is worse than", "No difference is shown"))
