"""Episodes that a model plays while it is trained, and what each of its messages was worth.

The model speaks in this process, by the weights that are being trained, at temperature 1. The episodes of a batch are
played side by side: a row each in one batch, whose keys and values are kept from the prompt to the end. What the
environment says, and a row that is silent while others still speak, is filled up behind and masked, so that rows may
have any lengths.

A teacher can read along (dagger): where the model errs, the demonstrator's message is sent in place of its own. The
replaced message is masked as if it had never been read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from resilisim.datasets.conversations import Transcript
from resilisim.datasets.demonstrator import Demonstrator
from resilisim.datasets.rollout import Stage, Start
from resilisim.envs.session import Session
from resilisim.evaluation.episode.play import Judging
from resilisim.evaluation.episode.record import REGRET_TOLERANCE, EpisodeRecord
from resilisim.finetuning.config import Credit, FinetuningConfig
from resilisim.finetuning.examples import Encoder, Example
from resilisim.finetuning.memory import SideBySide
from resilisim.policies.base import call_message
from resilisim.policies.ppo.network import draw
from resilisim.seeding import Draws
from resilisim.simulator.exact import solve
from resilisim.tasks import Task
from resilisim.tool_library import default_library

_GROUPED = "resilisim-grouped"

Opening: TypeAlias = tuple[Stage, Task, Start]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """An episode as the model played it; a message is that of a turn, numbered from 0.

    Attributes:
        tokens: The whole conversation, (num_tokens,).
        message: Number of the message that a token belongs to, the model's or its teacher's, (num_tokens,); -1 for all
            that the environment said.
        log_probabilities: What the model gave each of its tokens when it drew them, (num_tokens,); 0 elsewhere.
        values: V* before each message, (num_messages,).
        regrets: What each message gave away of it, (num_messages,).
        outcome: 1 in full success, else 0.
        is_lesson: Whether each message is to be imitated, (num_messages,); None where no teacher read along.
        num_mistakes: How many of the model's messages were mistakes, whether they were sent or replaced.
    """

    tokens: NDArray[np.int64]
    message: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]
    values: NDArray[np.float64]
    regrets: NDArray[np.float64]
    outcome: int
    is_lesson: NDArray[np.bool_] | None = None
    num_mistakes: int = 0

    def learned(self, credit: NDArray[np.float64]) -> Example | None:
        """Return what is learned if each message has a credit, (num_messages,), cut behind the last; None if nothing.

        Messages without credit are read and not learned, and so is everything once V* is 0.
        """
        of_message = np.append(np.where(self.values > 0.0, credit, 0.0), 0.0)  # the last one is that of -1
        worth = of_message[self.message].astype(np.float32)
        (places,) = worth.nonzero()
        if not len(places):
            return None
        end = places[-1] + 1
        return Example(self.tokens[:end], worth[:end] != 0.0, worth[:end])


def credits_of(played: Sequence[Played], credit: Credit, group_size: int) -> list[NDArray[np.float64]]:
    """Return the credit of each message of each episode, episodes of a group standing together.

    "advantage": Q* - V*, minus the regret; what the message gave away, whatever the luck and whatever came after it.
    In a group it is compared with the mean of what the others said at the same place, after the same words; a message
    at a place where nobody else was has none. Without that, a model that is nearly sure learns to say its likeliest
    mistake less, whatever comes in its place.
    "success": as GRPO has it (Shao et al., arXiv:2402.03300), the same for all messages of an episode: its outcome less
    the mean of its group, in units of their spread; 0 where all ended alike.
    """
    if credit == "advantage":
        groups = [played[first : first + group_size] for first in range(0, len(played), group_size)]
        return [credit for group in groups for credit in _compared_advantages(group)]
    outcomes = np.array([each.outcome for each in played], dtype=np.float64).reshape(-1, group_size)
    from_mean, spread = outcomes - outcomes.mean(axis=1, keepdims=True), outcomes.std(axis=1, keepdims=True)
    credits = np.divide(from_mean, spread, out=np.zeros_like(outcomes), where=spread > 0.0).ravel()
    return [np.full(len(each.regrets), value) for each, value in zip(played, credits, strict=True)]


def _compared_advantages(group: Sequence[Played]) -> list[NDArray[np.float64]]:
    """Return the advantage of each message, less the mean of the others' at the same place if the group is not one."""
    if len(group) == 1:
        return [0.0 - group[0].regrets]
    places = [
        [each.tokens[: (each.message == number).argmax()].tobytes() for number in range(len(each.regrets))]
        for each in group
    ]
    met: dict[bytes, list[float]] = {}
    for each, own in zip(group, places, strict=True):
        for place, regret in zip(own, each.regrets.tolist(), strict=True):
            met.setdefault(place, []).append(regret)
    return [
        np.array([_less_than_others(met[place], regret) for place, regret in zip(own, each.regrets, strict=True)])
        for each, own in zip(group, places, strict=True)
    ]


def _less_than_others(regrets: Sequence[float], own: float) -> float:
    """Return by how much one of the regrets is less than the mean of the others; 0 if there are none."""
    others = len(regrets) - 1
    return (sum(regrets) - own) / others - own if others else 0.0


class Sampler:
    """Plays episodes with a model; the weights are those that it has at the time.

    Args:
        model: The base model with its adapter.
        encoder: Its tokenizer and chat template.
        config: The settings of the training.
        device: Where the model lies.
        greedy: Whether the likeliest token is said each time, and nothing is drawn.
    """

    def __init__(
        self, model: Any, encoder: Encoder, config: FinetuningConfig, device: str = "cpu", greedy: bool = False
    ) -> None:
        self._model, self._encoder, self._config, self._device = model.get_base_model(), encoder, config, device
        self._greedy = greedy
        self._rows = SideBySide("episodes", sys.maxsize, "batch_size")
        _attend_in_groups(self._model)

    def openings(self, tasks: Sequence[Task]) -> list[Opening]:
        """Return the beginnings of the episodes of some tasks."""
        dealt = []
        for kind, share in self._config.dealt(tasks):
            stage = Stage(default_library(), self._config.episodes(kind))
            dealt += [stage.of_task(task) for task in share]
        return [(stage, task, start) for stage, task in dealt for start in stage.starts(task)]

    @torch.inference_mode()
    def play(self, openings: Sequence[Opening], *name: object) -> list[Played]:
        """Play episodes side by side; what is drawn is a function of the name, and of an episode's place in the batch.

        Rows of a batch do not change each other's draws, but in the last bits of their probabilities.
        """
        return [seat.played() for seat in self._seats_played(openings, name)]

    @torch.inference_mode()
    def records(self, openings: Sequence[Opening], policy: str) -> list[EpisodeRecord]:
        """Play episodes side by side, and return their records, as a run of that policy would write them."""
        return [seat.judging.record(policy) for seat in self._seats_played(openings, (policy,))]

    def _seats_played(self, openings: Sequence[Opening], name: tuple[object, ...]) -> list[_Seat]:
        places = range(len(openings))

        def in_parts(size: int) -> list[_Seat]:
            parts = (places[first : first + size] for first in range(0, len(places), size))
            return [
                seat
                for part in parts
                for seat in self._seated([self._seat(openings[place], (*name, place)) for place in part])
            ]

        return self._rows.attempt(in_parts, len(openings))

    def _seated(self, seats: list[_Seat]) -> list[_Seat]:
        """Play the episodes of some seats, a row of the batch each, and return the seats."""
        with torch.autocast(self._device, torch.bfloat16, enabled=self._config.precision == "bfloat16"):
            table = _Table(self._model, len(seats), self._device)
            playing = list(range(len(seats)))
            while playing:
                self._turn([seats[place] for place in playing], table)
                going_on = [row for row, place in enumerate(playing) if not seats[place].is_over]
                if len(going_on) < len(playing):
                    table.keep(going_on)
                    playing = [playing[row] for row in going_on]
        return seats

    def _seat(self, opening: Opening, name: tuple[object, ...]) -> _Seat:
        stage, task, start = opening
        is_taught = self._config.stage == "dagger"
        judging, env = Judging(), stage.environment.twin()
        session = Session(env, task, start.prompt, start.seed, privileged=is_taught, observers=[judging])
        draws = Draws("resilisim/finetuning/sampling", *name)
        teacher = _Teacher(stage, task, session, self._config) if is_taught else None
        return _Seat(session, judging, self._encoder, draws, teacher)

    def _turn(self, seats: Sequence[_Seat], table: _Table) -> None:
        """Let every seat say one message, and send it."""
        hidden = table.read([seat.unread for seat in seats])
        speaking = list(range(len(seats)))
        for said in range(1, self._config.message_tokens + 1):
            log_probabilities = torch.log_softmax(self._model.get_output_embeddings()(hidden[speaking]).float(), -1)
            if self._greedy:
                tokens = log_probabilities.argmax(-1)
            else:
                uniforms = [[seats[row].draws.uniform()] for row in speaking]
                # In 64 bits: as one of 32, a uniform number of 53 bits may be 1.
                tokens = draw(
                    log_probabilities.double().exp(), torch.tensor(uniforms, dtype=torch.float64, device=self._device)
                )
            chances = log_probabilities.gather(-1, tokens[:, None]).squeeze(-1).tolist()
            for row, token, chance in zip(speaking, tokens.tolist(), chances, strict=True):
                seats[row].say(token, chance)
            speaking = [row for row in speaking if not seats[row].is_silent]
            if not speaking or said == self._config.message_tokens:
                break
            hidden = table.read([seat.unread if not seat.is_silent else [] for seat in seats])
        for row, seat in enumerate(seats):
            table.forget(row, seat.mend())
            seat.send()


def _attend_in_groups(model: Any) -> None:
    """Let heads that share their keys look at them together where a row reads one token.

    Otherwise transformers copies keys and values of all that was read for each head, at each token: on a CPU most of
    the time. What comes out is the same.
    """
    import transformers  # takes seconds
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **how: Any
    ) -> tuple[torch.Tensor, None]:
        rows, heads, num_tokens, width = query.shape
        if num_tokens > 1:
            result: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **how)
            return result
        together = query.reshape(rows, key.shape[1], -1, width)
        attended = torch.nn.functional.scaled_dot_product_attention(together, key, value, mask, scale=how["scaling"])
        return attended.reshape(rows, 1, heads, width), None

    transformers.AttentionInterface.register(_GROUPED, attend)
    transformers.AttentionMaskInterface.register(_GROUPED, sdpa_mask)
    model.set_attn_implementation(_GROUPED)


class _Table:
    """What the model has read in each row of a batch: keys and values, where they stand, and how many are real."""

    def __init__(self, model: Any, num_rows: int, device: str) -> None:
        import transformers  # takes seconds

        self._read, self._device = model.get_decoder(), device
        self._cache = transformers.DynamicCache(config=model.config)
        self._mask = torch.zeros(num_rows, 0, dtype=torch.int64, device=device)

    def read(self, blocks: Sequence[list[int]]) -> torch.Tensor:
        """Read more tokens in each row, taking them out of the lists; return what stands behind each row's last."""
        sizes = torch.tensor([len(block) for block in blocks])
        places = torch.arange(int(sizes.max()))
        is_real = (places < sizes[:, None]).to(torch.int64)
        tokens = torch.zeros_like(is_real)
        for row, block in enumerate(blocks):
            tokens[row, : len(block)] = torch.tensor(block, dtype=torch.int64)
            block.clear()
        positions = self._mask.sum(1, keepdim=True) + places.to(self._device)
        self._mask = torch.cat([self._mask, is_real.to(self._device)], dim=1)
        output = self._read(
            input_ids=tokens.to(self._device),
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden[torch.arange(len(blocks)), (sizes - 1).clamp(min=0)]

    def forget(self, row: int, count: int) -> None:
        """Forget the last tokens of a row: nothing reads them any more, and what comes next takes their places."""
        if count:
            self._mask[row, self._mask[row].nonzero().flatten()[-count:]] = 0

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all rows but some."""
        kept_rows = torch.tensor(rows, dtype=torch.int64, device=self._device)
        self._mask = self._mask[kept_rows]
        self._cache.batch_select_indices(kept_rows)


class Advice(NamedTuple):
    """What a teacher thinks of a message: what to say in its place, in the plainest words if it was right."""

    text: str
    is_right: bool
    leaves_hope: bool


class _Teacher:
    """Reads along in an episode: judges what the model is about to send, and knows what the demonstrator would."""

    def __init__(self, stage: Stage, task: Task, session: Session, config: FinetuningConfig) -> None:
        self._stage, self._session, self.lets_stand = stage, session, config.explore
        self._most_regret = max(config.plan_margin, REGRET_TOLERANCE)
        self._agent = Demonstrator(stage, task, pass_parameters=False, plan_margin=config.plan_margin)
        self._agent.reset(session.reply.observation, session.reply.info)
        self._transcript = Transcript(stage, session.reply)

    @property
    def has_hope(self) -> bool:
        """Whether anything can still be won; else all messages are alike, and nothing is taught."""
        info = self._session.reply.info
        return solve(info["problem"]).value(info["state"]) > 0.0

    def judge(self, text: str) -> Advice:
        """Return what is to be said in place of a message; to be asked once a turn.

        A call of a tool that it has read of is as good if it gives away no more than `plan_margin`. A search or a
        request for information is only if the demonstrator has the same: the optimum knows its price, not its use.
        """
        info = self._session.reply.info
        said = self._agent.act(self._session.reply.observation, info)
        own, best = self._stage.read(text), self._stage.read(said)
        optimum = solve(info["problem"])
        worth = optimum.action_value(info["state"], own)
        is_right = own.signature == best.signature or own.kind == best.kind == "finish"
        if own.kind == "execute" and own.tool in self._agent.known_tools and not is_right:
            is_right = optimum.value(info["state"]) - worth <= self._most_regret
            if is_right and (best.kind, best.tool) != ("execute", own.tool):
                bare = call_message(own.tool or "")
                is_as_good = optimum.action_value(info["state"], self._stage.read(bare)) >= worth - REGRET_TOLERANCE
                said = bare if is_as_good else call_message(own.tool or "", own.parameters)  # none that change nothing
        return Advice(str(self._transcript.assistant_message(said)["content"]), is_right, worth > 0.0)


class _Seat:
    """One episode in tokens, with what the model has not read yet."""

    def __init__(
        self, session: Session, judging: Judging, encoder: Encoder, draws: Draws, teacher: _Teacher | None = None
    ) -> None:
        self.session, self.judging, self.draws = session, judging, draws
        self._encoder, self._teacher = encoder, teacher
        self._lessons: list[bool] = []
        self._num_mistakes = 0
        self._conversation = [{"role": "user", "content": session.reply.text}]
        self._tokens = encoder.tokens(encoder.text(self._conversation, asks=True))
        self._message, self._log_probabilities = [-1] * len(self._tokens), [0.0] * len(self._tokens)
        self.unread = list(self._tokens)
        self.is_silent = False
        self._begins = len(self._tokens)  # where the message under way does

    def say(self, token: int, log_probability: float) -> None:
        """Add a token to the message."""
        self._add([token], self._number, log_probability)
        self.is_silent = token == self._encoder.end

    @property
    def _number(self) -> int:
        """The message under way."""
        return len(self.judging.steps)

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended, or can teach nothing more."""
        return self.session.ended or (self._teacher is not None and not self._teacher.has_hope)

    def mend(self) -> int:
        """Put the teacher's words in place of the model's, and return how many tokens of these the model has read.

        So mistakes are mended, and what was right is said plainly. Some mistakes stand if anything can still be won, so
        that going on after one is learned, too.
        """
        if self._teacher is None:
            return 0
        said = self._tokens[self._begins :]
        advice = self._teacher.judge(self._encoder.words(said))
        self._num_mistakes += not advice.is_right
        stands = advice.leaves_hope and not advice.is_right and self.draws.uniform() < self._teacher.lets_stand
        self._lessons.append(not stands)
        plain = [*self._encoder.tokens(advice.text), self._encoder.end]
        if stands or said == plain:
            return 0
        num_read = len(said) - len(self.unread)
        for each in (self._tokens, self._message, self._log_probabilities):
            del each[self._begins :]
        self.unread.clear()
        self._add(plain, self._number)
        self.is_silent = True
        return num_read

    def send(self) -> None:
        """Send the message, as far as it came, and add what the environment says to it."""
        said = self._tokens[self._begins :]
        if self.is_silent:
            said = said[:-1]
        else:  # cut: its end was not the model's choice
            self._add([self._encoder.end])
        text = self._encoder.words(said)
        reply = self.session.send(text)
        self._conversation.append({"role": "assistant", "content": text})
        if not reply.ended:
            so_far = self._encoder.text(self._conversation).rstrip("\n")
            self._conversation.append({"role": "user", "content": reply.text})
            prompt = self._encoder.text(self._conversation, asks=True)[len(so_far) :]
            self._add(self._encoder.tokens(prompt))
        self._begins, self.is_silent = len(self._tokens), False

    def _add(self, tokens: list[int], message: int = -1, log_probability: float = 0.0) -> None:
        self._tokens += tokens
        self.unread += tokens
        self._message += [message] * len(tokens)
        self._log_probabilities += [log_probability] * len(tokens)

    def played(self) -> Played:
        """Return the episode, as far as it was played."""
        steps = self.judging.steps
        return Played(
            np.array(self._tokens, dtype=np.int64),
            np.array(self._message, dtype=np.int64),
            np.array(self._log_probabilities, dtype=np.float32),
            np.array([step["value"] for step in steps]),
            np.array([step["regret"] for step in steps]),
            self.judging.outcome,
            None if self._teacher is None else self._is_lesson(),
            self._num_mistakes,
        )

    def _is_lesson(self) -> NDArray[np.bool_]:
        """Return which messages are imitated: no mistake that stood, and none that left no hope."""
        both = zip(self._lessons, self.judging.steps, strict=True)
        return np.array([is_right and self._encoder.is_good(step) for is_right, step in both], dtype=np.bool_)
