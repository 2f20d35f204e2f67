"""A run on the machines of a Ray cluster: the records of a run on one machine, whatever happens to the machines."""

import json
import logging
import re
import socket
from dataclasses import replace

import pytest
import ray
from ray.cluster_utils import Cluster

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError
from resilisim.evaluation.run import ray_cluster
from resilisim.evaluation.run.contestants import Contestant
from resilisim.evaluation.run.plan import Plan, RunSettings
from resilisim.evaluation.run.player import EpisodePlayer, Players
from resilisim.evaluation.run.ray_cluster import play_on_cluster
from resilisim.provenance import encode_json_line
from tests.evaluation.toy_policies import toy_tasks

TOYS = "tests.evaluation.toy_policies"
PLAYERS = Players(1, False)
STORE_BYTES = 80 * 2**20
# A dead node is noticed after half a second, not after half a minute.
QUICK_EYES = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_failure_threshold": 2,
}


def settings_of(*policies):
    return RunSettings(
        contestants=tuple(Contestant(f"{TOYS}:{policy}", policy.lower()) for policy in policies),
        prompts=("optimal",),
        environment=EnvironmentSettings(),
        library=None,
        manifest_hash="0" * 64,
    )


def episodes_of(settings, seeds=1):
    plan = Plan(toy_tasks(), len(settings.contestants), len(settings.prompts), range(seeds))
    return [plan.episode(index) for index in range(len(plan))]


def serial_lines(settings, episodes):
    return [encode_json_line(outcome) for outcome in EpisodePlayer(settings).play_all(iter(episodes))]


def in_order(lines):
    return sorted(lines, key=lambda line: json.loads(line)["index"])


class Machines:
    """A cluster whose head only directs, and two machines with one processor each."""

    def __init__(self):
        small = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(True, head_node_args={**small, "num_cpus": 0, "_system_config": QUICK_EYES})
        self._nodes = [self._cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        self.address = self._cluster.address

    def kill_one(self):
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

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


def test_machines_fail_one_after_the_other(machines, capfd, monkeypatch):
    """One test, for what is killed stays dead: all machines, then one, then none."""
    settings = settings_of("Slow", "Quitter")
    episodes = episodes_of(settings, seeds=12)
    expected = serial_lines(settings, episodes)

    lines = []
    for outcome, line in play_on_cluster(settings, iter(episodes), machines.address, PLAYERS):
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
        list(play_on_cluster(dying, iter(episodes_of(dying)), "auto", PLAYERS))
    assert "\n" not in str(refusal.value)

    rest = iter(episodes)
    played = play_on_cluster(settings, rest, "auto", PLAYERS)
    first = [next(played)[1] for _ in range(3)]
    assert set(first) <= set(expected)
    machines.kill_one()
    with pytest.raises(InfrastructureError, match="no machine is left in the Ray cluster"):
        list(played)
    with pytest.raises(InfrastructureError, match="has no processor to run on"):
        list(play_on_cluster(settings, rest, "auto", PLAYERS))
    assert ray.is_initialized()
    assert capfd.readouterr().out == ""  # it belongs to results; Ray would tell of dead nodes there


def test_an_address_of_another_cluster_is_refused(machines):
    settings = settings_of("Slow")
    with pytest.raises(InvalidInputError, match="this process is connected to the Ray cluster at"):
        list(play_on_cluster(settings, iter(()), "127.0.0.1:1", PLAYERS))


@pytest.mark.parametrize(
    "address", ["", "here", "host", "host:", ":1", "host:port", "http://host:1", "ray://h:1", "h:1/x"]
)
def test_text_that_is_no_address_is_refused_before_anything_is_started(address):
    with pytest.raises(InvalidInputError, match="expected 'auto', 'local' or HOST:PORT, on a machine that"):
        list(play_on_cluster(settings_of("Slow"), iter(()), address, PLAYERS))


@pytest.mark.parametrize("from_environment", [False, True])
def test_an_address_where_nobody_listens_is_refused_at_once(from_environment, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else answers there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address if from_environment else "")
        given = "auto" if from_environment else address
        with pytest.raises(InfrastructureError, match=f"cannot reach the Ray cluster at {address}: .*refused"):
            list(play_on_cluster(settings_of("Slow"), iter(()), given, PLAYERS))


def test_a_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'resilisim\[ray\]'"):
        list(play_on_cluster(settings_of("Slow"), iter(()), "auto", PLAYERS))


def test_what_a_machine_cannot_play_is_named():
    """The player itself, without a cluster: its errors travel as values, with machine or episode named."""
    player = ray_cluster._RemotePlayer()
    nobody = replace(settings_of("Slow"), contestants=(Contestant(f"{TOYS}:Nobody", "nobody"),))
    part = player.start(nobody, ray_cluster.resilisim.__version__)
    assert isinstance(part.error, InvalidInputError)
    assert re.search(r"Nobody.*\(on .+\)", str(part.error))
    broken = settings_of("Broken")
    assert player.start(broken, "0.0.0").error is not None
    assert player.start(broken, ray_cluster.resilisim.__version__).error is None
    lines, part = [], player.play(episodes_of(broken))
    while not part.is_last:
        lines, part = lines + part.lines, player.play(None)
    assert [json.loads(line)["index"] for line in lines + part.lines] == [0, 1]
    assert isinstance(part.error, KeyError)
    assert any("episode 2: policy broken" in note for note in part.error.__notes__)


def test_replies_are_forgotten_when_their_records_are_written(tmp_path, monkeypatch):
    """The player itself, without a cluster: the replies of a job go when the next one comes."""
    monkeypatch.setattr(ray_cluster, "PART_SECONDS", 60.0)
    settings = replace(settings_of("Quitter"), directory=str(tmp_path))
    episodes = episodes_of(settings, 2)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for episode in episodes:
        (unfinished / f"{episode.index}.jsonl").touch()
    player = ray_cluster._RemotePlayer()
    assert player.start(settings, ray_cluster.resilisim.__version__).error is None
    part = player.play(episodes[:5])
    assert (len(part.lines), part.is_last, part.error) == (5, True, None)
    assert len(list(unfinished.iterdir())) == 12
    player.play(episodes[5:7])
    assert len(list(unfinished.iterdir())) == 7
    player.forget()
    assert len(list(unfinished.iterdir())) == 5
