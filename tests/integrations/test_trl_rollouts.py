"""Rollouts for TRL's trainer, with a trainer and a tokenizer of the same shape: TRL itself is not needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.integrations.trl import episode_reward, rollout_func, rollout_rows

READER = "file_operations_reader"


class Letters:
    """A tokenizer whose tokens are letters."""

    eos_token_id = 3

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids, skip_special_tokens):
        return "".join(chr(number) for number in ids if number != self.eos_token_id)

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return "".join(f"\x02{message['role']}:{message['content']}\x03" for message in messages) + "\x02assistant:"


class Trainer:
    """A trainer that answers with one reply after another, cut at its own limit as generation is."""

    def __init__(self, replies, limit, with_logprobs=True):
        self.processing_class = Letters()
        self.max_completion_length = limit
        self.replies = replies
        self.with_logprobs = with_logprobs
        self.turn = 0

    def _generate_single_turn(self, prompt_ids, images, options, number):
        reply = [*map(ord, self.replies[min(self.turn, len(self.replies) - 1)]), Letters.eos_token_id]
        self.turn += 1
        cut = reply[: self.max_completion_length]
        return [cut for _ in prompt_ids], [[-1.0] * len(cut) for _ in prompt_ids] if self.with_logprobs else None


PROMPTS = [row["prompt"] for row in rollout_rows(tasks=2)]
PLAY = rollout_func(prompt_style="compact", tools="listed", base=1.0)
CALL = f"<tool_call>{READER}</tool_call>"


def played(replies, limit, prompts=PROMPTS, **more):
    trainer = Trainer(replies, limit, **more)
    return PLAY(prompts, trainer), trainer


def check_shape(rollouts, limit):
    for ids, mask, reward in zip(rollouts["completion_ids"], rollouts["env_mask"], rollouts["reward"], strict=True):
        assert len(ids) == len(mask)
        assert limit is None or len(ids) <= limit
        assert isinstance(reward, float)
    if rollouts["logprobs"] is not None:
        assert [len(one) for one in rollouts["logprobs"]] == [len(one) for one in rollouts["completion_ids"]]


@pytest.mark.parametrize("with_logprobs", [True, False])
@pytest.mark.parametrize("limit", [1, 40, 41, 42, 300, 1000, 4000])
@pytest.mark.parametrize("length", [0, 30, 900])
def test_a_completion_is_never_longer_than_the_trainer_allows(limit, length, with_logprobs):
    rollouts, _ = played([f"{'so ' * length}{CALL}"], limit, with_logprobs=with_logprobs)
    check_shape(rollouts, limit)
    assert (rollouts["logprobs"] is not None) is with_logprobs
    assert all(any(mask) for mask in rollouts["env_mask"])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([CALL, "<finish/>", "hm " * 50, ""]) | st.text(max_size=60), min_size=1),
    st.integers(1, 3000),
)
def test_random_replies_keep_the_limit(replies, limit):
    rollouts, _ = played(replies, limit)
    check_shape(rollouts, limit)


def test_a_reply_that_is_cut_is_not_carried_out_and_the_episode_stops():
    whole, _ = played([CALL, "<finish/>"], None, PROMPTS[:1])
    (ids,), (mask,) = whole["completion_ids"], whole["env_mask"]
    first = len(CALL) + 1
    answer = mask.index(1, first) - first
    for limit, turns, kept in (
        (first + answer + 5, 2, first + answer + 5),  # within the second reply
        (first + answer, 1, first),  # no room behind the answer
        (first - 1, 1, first - 1),  # the end of the first reply is cut off by generation itself
        (None, 2, len(ids)),
    ):
        rollouts, trainer = played([CALL, "<finish/>"], limit, PROMPTS[:1])
        assert trainer.turn == turns
        assert rollouts["completion_ids"] == [ids[:kept]]
    assert episode_reward(rollouts["reward"]) == rollouts["reward"]
