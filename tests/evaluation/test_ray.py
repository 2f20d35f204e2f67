"""A run on the machines of a Ray cluster: the records of a run on one machine, whatever happens to the machines."""

import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import ray
from ray.cluster_utils import Cluster

from resilisim import explore
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import CheckFailed, InfrastructureError, InvalidInputError, MissingExtraError
from resilisim.evaluation import ModelSettings, evaluate, opened, read_records
from resilisim.evaluation.run import ray_cluster
from resilisim.evaluation.run.contestants import Contestant
from resilisim.evaluation.run.plan import PlannedEpisodes, RunSettings
from resilisim.evaluation.run.player import EpisodePlayer, Players
from resilisim.evaluation.run.ray_cluster import play_on_cluster
from resilisim.evaluation.run.store import JOURNALS_NAME, read_failures
from resilisim.provenance import encode_json_line
from resilisim.workflows import parse_plan
from tests.chat.loopback import LoopbackServer, completion, error
from tests.evaluation.agent_models import endpoint, following_answer, next_reply
from tests.evaluation.toy_policies import toy_tasks

pytestmark = pytest.mark.long

TOYS = "tests.evaluation.toy_policies"
PLAYERS = Players(1, False)
STORE_BYTES = 80 * 2**20
# A dead node is noticed after half a second, not after half a minute.
QUICK_EYES = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 2}


def settings_of(*policies):
    return RunSettings(
        contestants=tuple(Contestant(f"{TOYS}:{policy}", policy.lower()) for policy in policies),
        prompts=("optimal",),
        environment=EnvironmentSettings(),
        library=None,
        manifest_hash="0" * 64,
    )


def episodes_of(settings, seeds=1):
    plan = PlannedEpisodes(toy_tasks(), len(settings.contestants), settings.prompts, range(seeds))
    return list(plan)


def serial_lines(settings, episodes):
    return [encode_json_line(outcome) for outcome in EpisodePlayer(settings).play_all(iter(episodes))]


def play_on_machines(settings, episodes, address="auto"):
    return play_on_cluster(settings, iter(episodes), len(episodes), replace(PLAYERS, ray=address))


def in_order(lines):
    return sorted(lines, key=lambda line: json.loads(line)["index"])


class Machines:
    """A cluster whose head only directs, and two machines with one processor each."""

    def __init__(self):
        self._small = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(True, head_node_args={**self._small, "num_cpus": 0, "_system_config": QUICK_EYES})
        self._nodes = []
        self.make_whole()
        self.address = self._cluster.address

    def make_whole(self):
        while len(self._nodes) < 2:
            self._nodes.append(self._cluster.add_node(num_cpus=1, **self._small))

    def kill_one(self):
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    @contextlib.contextmanager
    def one_dies(self, is_time):
        """Kill a machine once it is time; `is_time` is asked again and again meanwhile."""

        def kill():
            while not is_time():
                time.sleep(0.005)
            self.kill_one()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        yield
        killer.join(60.0)
        assert not killer.is_alive(), "the run ended before a machine was killed"

    def stop(self):
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Machines()
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield made
        ray.shutdown()
        made.stop()


def follow(session):
    time.sleep(0.5)  # a machine is to die while some play
    for name in parse_plan(session.prompt):
        while session.turns_left and not session.call(name).ok:
            pass
    return "done"


def agents_that_travel():
    """Return agents as objects that no module has: one that fails at first, and one that always does."""
    tries = Counter()

    def shaky(session):
        tries[session.prompt] += 1
        if tries[session.prompt] == 1:
            raise ConnectionError("no route")
        return follow(session)

    def broken(session):
        raise KeyError("no such thing")

    return [shaky, broken]


@pytest.mark.long
def test_agents_survive_the_death_of_a_machine(machines, tmp_path):
    machines.make_whole()
    lock = threading.Lock()
    with pytest.raises(InvalidInputError, match=r"^a policy cannot be handed to other machines \([^\n]*lock[^\n]*$"):
        evaluate(agents=lambda session: lock.locked(), tasks=1, ray="auto")
    agents = [follow, *agents_that_travel(), "command:true"]
    limits = ModelSettings(concurrency=4, episode_retries=1, give_up_after=100)
    written = tmp_path / "episodes.jsonl"
    with machines.one_dies(lambda: written.exists() and written.read_bytes().count(b"\n") >= 3):
        result = evaluate(
            agents=agents, tasks=toy_tasks(3), prompts="optimal", seeds=2, model=limits, out=tmp_path, ray="auto"
        )
    counts = Counter(record["policy"] for record in read_records(tmp_path))
    assert counts == {"follow": 6, "shaky": 6, "true": 6, "broken": 6}
    follower, shaky = (result.row(name, "optimal") for name in ("follow", "shaky"))
    assert follower.success == shaky.success
    assert list(read_failures(tmp_path)) == []
    assert {record["ended_by"] for record in read_records(tmp_path) if record["policy"] == "broken"} == {"agent_error"}


@pytest.mark.long
def test_an_exploration_survives_the_death_of_a_machine(machines, tmp_path):
    """Branches that had arrived are played again elsewhere, and stand in the folder once."""
    machines.make_whole()
    arguments = {"agents": unhurried, "tasks": toy_tasks(4), "prompts": "optimal", "plays": 12}
    written = tmp_path / "ray" / "episodes.jsonl"
    with machines.one_dies(lambda: written.exists() and written.read_bytes().count(b"\n") >= 5):
        found = explore(out=tmp_path / "ray", ray="auto", **arguments)
    assert found.rows == explore(out=tmp_path / "alone", **arguments).rows
    of_ray, alone = (
        sorted(read_records(tmp_path / name), key=lambda record: record["index"]) for name in ("ray", "alone")
    )
    assert [record["index"] for record in of_ray] == [record["index"] for record in alone]
    assert [record["branch"] for record in of_ray] == [record["branch"] for record in alone]


def unhurried(session):
    time.sleep(0.1)  # a machine is to die while some play
    for name in parse_plan(session.prompt):
        session.call(name).ok or session.call(name)
    return "done"


def bodies(requests):
    return Counter(json.dumps(seen.body, sort_keys=True) for seen in requests)


@pytest.mark.long
def test_replies_survive_the_way_to_a_cluster_and_the_death_of_a_machine(machines, tmp_path):
    """The endpoint breaks a run on this machine; a cluster resumes it, and one of its machines dies."""
    machines.make_whole()
    answered, kept, is_up = [], set(), threading.Event()
    asked = defaultdict(list)  # request -> numbers of its answers

    def slowly(seen):
        time.sleep(0.3)
        if seen.number > 10 and not is_up.is_set():
            return error(503)
        answered.append(seen.number)
        asked[json.dumps(seen.body, sort_keys=True)].append(seen.number)
        text = next_reply([message["content"] for message in seen.body["messages"][1:]])
        return completion(text.replace("Thought:", f"Thought: number {seen.number};"))

    def numbers(text):
        return {int(number) for number in re.findall(r"number (\d+);", text)}

    def is_time():
        kept.clear()
        for path in (tmp_path / JOURNALS_NAME).glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # its episode has just ended
                kept.update(numbers(path.read_text()))
        return len(answered) >= 24 and len(kept.difference(first)) >= 4

    with LoopbackServer(slowly) as server:
        settings = endpoint(server, concurrency=4, give_up_after=3)
        run = {"out": tmp_path, "model": settings}
        with pytest.raises(InfrastructureError, match="3 episodes in a row broke"):
            evaluate("react", toy_tasks(4), "optimal", 4, **run)
        first = set(answered)
        is_up.set()
        with machines.one_dies(is_time):
            result = evaluate("react", toy_tasks(4), "optimal", 4, **run, ray="auto")
    assert (result.num_episodes, result.call.num_failures) == (16, 0)
    used = numbers(json.dumps([opened(record) for record in result.records()]))
    assert first | kept <= used
    # What was still on its way when the machine died had to be asked for again, and nothing else.
    assert not [numbers for numbers in asked.values() if kept.intersection(numbers[:-1])]
    assert not (tmp_path / JOURNALS_NAME).exists()


@pytest.mark.long
def test_a_run_that_broke_on_a_cluster_is_resumed_without_one(machines, tmp_path):
    lock, answered, is_up = threading.Lock(), [], threading.Event()

    def breaks(seen):
        with lock:
            if len(answered) < 10 or is_up.is_set():
                answered.append(json.dumps(seen.body, sort_keys=True))
                return following_answer(seen)
        time.sleep(0.4)  # until what was answered has arrived
        return error(503)

    with LoopbackServer(breaks) as server:
        settings = endpoint(server, concurrency=4, give_up_after=3)
        with pytest.raises(InfrastructureError, match="3 episodes in a row broke"):
            evaluate("react", toy_tasks(2), "optimal", 4, out=tmp_path, model=settings, ray="auto")
        time.sleep(1.0)  # machines that were told to end may still ask
        is_up.set()
        result = evaluate("react", toy_tasks(2), "optimal", 4, out=tmp_path, model=settings)
    assert result.num_episodes == 8
    assert len(answered) == len(set(answered)) == result.agents()[0].components["agent"]["calls"]


@pytest.mark.long
def test_machines_fail_one_after_the_other(machines, capfd, monkeypatch):
    """One test, for what is killed stays dead: all machines, then one, then none."""
    machines.make_whole()
    settings = settings_of("Slow", "Quitter")
    episodes = episodes_of(settings, seeds=12)
    expected = serial_lines(settings, episodes)

    lines = []
    for outcome, line in play_on_machines(settings, episodes, machines.address):
        assert outcome == json.loads(line)
        lines.append(line)
        if len(lines) == 30:
            machines.kill_one()
    assert len(lines) > 30
    assert in_order(lines) == expected

    # A policy that takes its process down is not tried for ever, and nobody is left behind.
    monkeypatch.setattr(ray_cluster, "MOST_LOSSES", 2)
    dying = settings_of("Dying")
    with pytest.raises(InfrastructureError, match=r"died 2 times while it had episode \d+") as refusal:
        list(play_on_machines(dying, episodes_of(dying)))
    assert "\n" not in str(refusal.value)

    played = play_on_machines(settings, episodes)
    first = [next(played)[1] for _ in range(3)]
    assert set(first) <= set(expected)
    machines.kill_one()
    with pytest.raises(InfrastructureError, match="no machine is left in the Ray cluster"):
        list(played)
    with pytest.raises(InfrastructureError, match="has no processor to run on"):
        list(play_on_machines(settings, episodes))
    assert ray.is_initialized()
    assert capfd.readouterr().out == ""  # it belongs to results; Ray would tell of dead nodes there


def test_an_address_of_another_cluster_is_refused(machines):
    settings = settings_of("Slow")
    with pytest.raises(InvalidInputError, match="this process is connected to the Ray cluster at"):
        list(play_on_machines(settings, (), "127.0.0.1:1"))


@pytest.mark.parametrize(
    "address", ["", "here", "host", "host:", ":1", "host:port", "http://host:1", "ray://h:1", "h:1/x"]
)
def test_text_that_is_no_address_is_refused_before_anything_is_started(address):
    with pytest.raises(InvalidInputError, match="expected 'auto', 'local' or HOST:PORT, on a machine that"):
        list(play_on_machines(settings_of("Slow"), (), address))


@pytest.mark.parametrize("from_environment", [False, True])
def test_an_address_where_nobody_listens_is_refused_at_once(from_environment, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else answers there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address if from_environment else "")
        given = "auto" if from_environment else address
        with pytest.raises(InfrastructureError, match=f"cannot reach the Ray cluster at {address}: .*refused"):
            list(play_on_machines(settings_of("Slow"), (), given))


def test_a_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[ray\]'"):
        list(play_on_machines(settings_of("Slow"), ()))


def test_what_a_machine_cannot_play_is_named():
    """The player itself, without a cluster: its errors travel as values, with machine or episode named."""
    player = ray_cluster._RemotePlayer()
    version = ray_cluster.resilisim.__version__
    nobody = replace(settings_of("Slow"), contestants=(Contestant(f"{TOYS}:Nobody", "nobody"),))
    (refusal,) = player.start(EpisodePlayer, nobody, version)
    assert isinstance(refusal, InvalidInputError)
    assert re.search(r"Nobody.*\(on .+\)", str(refusal))
    unsound = settings_of("Unsound")
    (refusal,) = player.start(EpisodePlayer, unsound, "0.0.0")
    assert "all machines need the same" in str(refusal)
    assert player.start(EpisodePlayer, unsound, version) == [None]
    messages = player.play(episodes_of(unsound))
    while isinstance(messages[-1], ray_cluster._Played):
        messages += player.play()
    *played, problem = messages
    assert [(json.loads(line)["index"], ended) for line, ended in played] == [(0, 0), (1, 1)]
    assert isinstance(problem, CheckFailed)
    assert any("episode 2: policy unsound" in note for note in problem.__notes__)
