"""A session: the episode of Conversation-v0, to the byte, for whoever keeps a loop of their own."""

from __future__ import annotations

import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.reply import PRIVATE_INFO, public_info
from resilisim.envs.session import EpisodeEnded, Session
from resilisim.policies import make_policy
from resilisim.policies.base import play
from resilisim.tasks.benchmark import benchmark_tasks

TASK = benchmark_tasks()[0]
READ = "<tool_call>file_operations_reader</tool_call>"
NATIVE = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "tool_info", "arguments": '{"name": "network_poster"}'}}
    ],
}


@pytest.mark.parametrize("protocol", ["text", "native"])
@pytest.mark.parametrize("privileged", [True, False])
def test_it_is_the_episode_of_the_environment(protocol, privileged):
    messages = [READ, NATIVE, READ, None] if protocol == "native" else [READ, "nonsense", READ, "<finish/>"]
    env = ConversationEnv(protocol=protocol)
    session = Session(env.twin(), TASK, "optimal", 7, privileged=privileged)
    observation, info = env.reset(seed=7, options={"task": TASK, "prompt": "optimal"})
    ended = False
    for message in messages:
        shown = {name: value for name, value in info.items() if name != "seed"} if privileged else public_info(info)
        assert (session.reply.observation, session.reply.info) == (observation, shown)
        assert (session.ended, session.turns_left) == (ended, info["turns_left"])
        observation, _, ended, _, info = env.stop() if message is None else env.step(message)
        assert session.send(message) is session.reply
    assert session.ended
    assert privileged or not PRIVATE_INFO.intersection(session.reply.info)
    with pytest.raises(EpisodeEnded) as late:
        session.send(READ)
    assert late.value.reply is session.reply


def test_begun_anew_it_is_the_same_episode():
    session = Session(ConversationEnv(), TASK, "optimal", 3)
    first = [session.reply, session.send(READ), session.send("<finish/>")]
    assert [session.restart(), session.send(READ), session.send("<finish/>")] == first


def test_both_protocols_have_the_same_words():
    text, native = (Session(ConversationEnv(protocol=protocol), TASK, "baseline", 1) for protocol in ("text", "native"))
    told = text.send("<tool_info>network_poster</tool_info>"), native.send(NATIVE)
    assert told[0].text.partition("\n\n")[0] == told[1].text.partition("\n\n")[0]
    assert told[1].observation.startswith("[{")


def test_a_policy_plays_it_and_it_knows_whether_all_is_done():
    watching, num_tools = Watching(), len(TASK.required_tools)
    session = Session(ConversationEnv(base=1.0, not_executed=1.0), TASK, "optimal", 0, observers=[watching])
    assert not session.oracle_was_asked
    while not session.oracle():
        session.send(f"<tool_call>{TASK.required_tools[session.reply.info['turn']]}</tool_call>")
    assert session.oracle_was_asked
    assert (session.ended, watching.outcomes) == (False, [0] * num_tools), "it has not said so yet"
    session.restart()
    assert watching.outcomes == []
    play(make_policy("plan-follower"), session)
    assert (session.ended, session.oracle(), watching.outcomes) == (True, True, [0] * num_tools + [1])
    assert watching.told == ["begun", *["stepped"] * num_tools, "begun", *["stepped"] * (num_tools + 1), "ended"]


class Watching:
    """An observer that keeps what it was told."""

    def __init__(self):
        self.told, self.outcomes = [], []

    def begun(self, start):
        assert start.info["required_tools"] == list(TASK.required_tools)
        self.told.append("begun")
        self.outcomes = []

    def stepped(self, step):
        self.told.append("stepped")
        self.outcomes.append(step.outcome)

    def ended(self, step):
        self.told.append("ended")
