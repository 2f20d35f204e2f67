"""Episodes of a model's own: what it says is what is learned, by the right credit, and a killed run goes on."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from resilisim.datasets.conversations import ConversationSource
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation import evaluate
from resilisim.finetuning import adapter_validation, sampling
from resilisim.finetuning.adapted_model import ADAPTER_WEIGHTS_FILE, adapter_arrays, add_adapter, load_base, set_adapter
from resilisim.finetuning.config import Kind, load_config
from resilisim.finetuning.decoder import Decoder
from resilisim.finetuning.examples import Encoder, Example
from resilisim.finetuning.lessons import drawn_tasks
from resilisim.finetuning.sampling import Advice, Played, Sampler, _Seat, credits_of
from resilisim.finetuning.training import _Run, train
from resilisim.policies.base import FINISH_TEXT
from resilisim.seeding import VALIDATION_SALT
from resilisim.tool_library import default_library
from tests.finetuning.test_finetuning import NUM_TOKENS, SMALL

OWN = SMALL.model_copy(
    update={
        "stage": "grpo",
        "message_tokens": 3,
        "train_episodes": 3,
        "batch_size": 3,
        "epochs": 1,
        "evaluate_every": 0,
    }
)

TAUGHT = OWN.model_copy(update={"stage": "dagger", "explore": 0.0, "prompts": ("optimal", "baseline"), "rank": 2})


class Choices:
    """An episode of up to three messages, in which all that matters is what a message begins with."""

    def __init__(self, environment, task, prompt, seed, privileged, observers):
        (self.judging,) = observers
        self.reply = SimpleNamespace(text="say" + "." * (seed % 5), ended=False)
        self.most = 1 + seed % 3

    @staticmethod
    def regret(text):
        return 0.0 if text < "P" else 0.25

    def send(self, text):
        regret = self.regret(text)
        self.judging.steps.append({"value": 0.75, "regret": regret, "action_value": 0.75 - regret, "label": None})
        self.reply = SimpleNamespace(text="no" * len(self.judging.steps), ended=len(self.judging.steps) == self.most)
        return self.reply

    @property
    def ended(self):
        return self.reply.ended


class OneChoice(Choices):
    """Such an episode of one message."""

    def __init__(self, *where, **how):
        super().__init__(*where, **how)
        self.reply, self.most = SimpleNamespace(text="say", ended=False), 1


def with_weights(base, config=OWN):
    """Return a model, and a run that computes with it; its adapter does something."""
    run, draws = _Run.__new__(_Run), np.random.default_rng(0)
    run._config, run._device = config, "cpu"
    run._model = add_adapter(load_base(base), config)
    shapes = {name: array.shape for name, array in adapter_arrays(run._model).items()}
    set_adapter(run._model, {name: draws.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()})
    run._decoder = Decoder(run._model)
    return run


@pytest.mark.long
def test_what_the_model_said_is_what_it_learns_and_as_likely_as_when_it_said_it(tiny_base, monkeypatch):
    monkeypatch.setattr(sampling, "Session", Choices)
    config = OWN.model_copy(update={"message_tokens": 6, "train_episodes": 8})
    run, encoder = with_weights(tiny_base, config), Encoder(tiny_base)
    sampler = Sampler(run._model, encoder, config)
    openings = sampler.openings(drawn_tasks(config, "train", 2))
    drawn = np.concatenate([episode.tokens[episode.message >= 0] for episode in sampler.play(openings, "a")])
    likeliest = int(np.bincount(drawn).argmax())
    monkeypatch.setitem(encoder.__dict__, "end", likeliest)  # so that messages have many lengths
    played = sampler.play(openings, "a")
    assert len(played) == 16
    lengths = set()
    for (_, _, start), episode in zip(openings, played, strict=True):
        assert len(episode.values) == 1 + start.seed % 3
        said = [episode.tokens[episode.message == number].tolist() for number in range(len(episode.values))]
        assert all(len(message) == 6 or message[-1] == likeliest for message in said)
        assert all(likeliest not in message[:-1] for message in said)
        lengths |= {len(message) for message in said}
        regrets = [Choices.regret(encoder.words([each for each in message if each != likeliest])) for message in said]
        assert episode.regrets.tolist() == regrets
        is_said = episode.message >= 0
        with torch.no_grad():
            found = float(run._log_probabilities([(Example(episode.tokens, is_said),)]))
        assert found == pytest.approx(float(episode.log_probabilities.sum()), abs=1e-3)
        assert (episode.log_probabilities[is_said] < 0.0).all()
    assert len(lengths) > 2
    again, other = sampler.play(openings, "a"), sampler.play(openings, "b")
    assert all((one.tokens == two.tokens).all() for one, two in zip(played, again, strict=True))
    assert any(len(one.tokens) != len(two.tokens) for one, two in zip(played, other, strict=True))


def test_an_episode_reads_as_the_template_writes_it(tiny_base):
    encoder = Encoder(tiny_base)
    sampler = Sampler(with_weights(tiny_base)._model, encoder, OWN)
    (episode,) = sampler.play(sampler.openings(drawn_tasks(OWN, "train", 1))[:1], 0)
    text = encoder._tokenizer.decode(episode.tokens.tolist(), skip_special_tokens=False)
    turns = text.split("<|im_start|>")[1:]
    assert [turn.partition("\n")[0] for turn in turns] == ["user", "assistant"] * len(episode.values)
    assert all(turn.endswith("<|im_end|>\n") for turn in turns[:-1])
    assert "## Work order" in turns[0]
    assert "message 1 of 10" in turns[2]


def test_the_gradient_is_that_of_what_is_given_away(tiny_base, monkeypatch):
    monkeypatch.setattr(sampling, "Session", OneChoice)
    config = OWN.model_copy(update={"message_tokens": 1})
    run, encoder = with_weights(tiny_base, config), Encoder(tiny_base)
    weights = [weight for weight in run._model.parameters() if weight.requires_grad]
    sampler = Sampler(run._model, encoder, config)
    opening = sampler.openings(drawn_tasks(config, "train", 1))[0]

    def gradient():
        found = torch.cat([weight.grad.flatten() for weight in weights]).double()
        run._model.zero_grad()
        return found

    asked = encoder.tokens(encoder.text([{"role": "user", "content": "say"}], asks=True))
    model = run._model.get_base_model()
    chances = torch.softmax(model(input_ids=torch.tensor([asked])).logits[0, -1], 0)
    worth = torch.tensor([OneChoice.regret(encoder.words([token])) for token in range(len(chances))])
    (chances * worth).sum().backward()
    exact, estimates = gradient(), []
    for batch in range(20):
        played = sampler.play([opening] * 100, batch)
        examples = [
            each.learned(credit) for each, credit in zip(played, credits_of(played, "advantage", 1), strict=True)
        ]
        samples = [(example,) for example in examples if example is not None]
        assert 0 < len(samples) < 100
        (run._loss_sum(samples, np.zeros(0)) / len(played)).backward()
        estimates.append(float(gradient() @ exact / (exact @ exact)))
    error = np.std(estimates, ddof=1) / np.sqrt(len(estimates))
    assert error < 0.15
    assert np.mean(estimates) == pytest.approx(1.0, abs=4 * error)


@pytest.mark.parametrize(("credit", "group_size"), [("advantage", 1), ("advantage", 4), ("success", 4)])
def test_the_better_message_is_learned(tiny_base, monkeypatch, tmp_path, credit, group_size):
    class Judged(OneChoice):
        def send(self, text):
            self.judging.outcome = int(self.regret(text) == 0.0)
            return super().send(text)

    monkeypatch.setattr(sampling, "Session", Judged)
    changed = {"message_tokens": 1, "batch_size": 40, "micro_batch": 40, "train_episodes": 40, "epochs": 2}
    config = OWN.model_copy(update={**changed, "credit": credit, "group_size": group_size, "checkpoint_every": 100})
    told = []
    train(config, tmp_path / "run", told.append, tiny_base)
    assert told[-1].num_samples == 160 * group_size
    assert told[0].loss > 0.15
    assert told[-1].loss < 0.6 * told[0].loss


@pytest.mark.long
def test_where_every_message_errs_the_demonstrator_plays_its_own_episode(tiny_base):
    encoder = Encoder(tiny_base, TAUGHT.plan_margin)
    sampler = Sampler(with_weights(tiny_base)._model, encoder, TAUGHT)
    tasks = drawn_tasks(TAUGHT, "train", 2)
    played = sampler.play(sampler.openings(tasks), "a")
    spec = TAUGHT.model_copy(update={"stage": "sft"}).dataset(Kind("benchmark"))
    source = ConversationSource(spec, default_library())
    records = [record for task in tasks for record in source.records(task)]
    assert len(played) == len(records) == 12
    num_lost = 0
    for episode, record in zip(played, records, strict=True):
        assert episode.num_mistakes == len(episode.values)
        good = map(encoder.is_good, record["turns"])
        assert episode.is_lesson.tolist() == list(good)[: len(episode.values)]
        assert not episode.log_probabilities.any()
        # Nothing is played any more once all is lost; what was learned up to there is what is learned of the record.
        num_lost += len(episode.values) < len(record["turns"])
        assert episode.values.tolist() == [turn["value"] for turn in record["turns"]][: len(episode.values)]
        learned = episode.learned(episode.is_lesson.astype(np.float64))
        ((expected,),) = encoder.samples([record])
        size = len(learned.tokens)  # without the end of the line
        assert learned.tokens.tolist() == expected.tokens[:size].tolist()
        assert learned.is_learned.tolist() == expected.is_learned[:size].tolist()
        assert not expected.is_learned[size:].any()
    assert num_lost > 0


def test_a_mistake_that_was_replaced_is_not_read_any_more(tiny_base, monkeypatch):
    class Teacher:
        has_hope, lets_stand = True, 0.5

        def __init__(self, *where):
            pass

        def judge(self, text):
            return Advice(text, True, True) if text < "P" else Advice("Do this instead", False, True)

    monkeypatch.setattr(sampling, "Session", Choices)
    monkeypatch.setattr(sampling, "_Teacher", Teacher)
    config = TAUGHT.model_copy(update={"message_tokens": 6, "train_episodes": 8})
    run, encoder = with_weights(tiny_base, config), Encoder(tiny_base)
    sampler = Sampler(run._model, encoder, config)
    openings = sampler.openings(drawn_tasks(config, "train", 2))
    drawn = np.concatenate([episode.tokens[episode.log_probabilities < 0.0] for episode in sampler.play(openings, "a")])
    monkeypatch.setitem(encoder.__dict__, "end", int(np.bincount(drawn).argmax()))
    instead, kinds = [*encoder.tokens("Do this instead"), encoder.end], set()
    for episode in sampler.play(openings, "a"):
        for number, is_lesson in enumerate(episode.is_lesson):
            is_replaced = episode.tokens[episode.message == number].tolist() == instead
            assert is_lesson or not is_replaced
            kinds.add((bool(is_lesson), is_replaced))
        is_own = episode.log_probabilities < 0.0
        with torch.no_grad():
            found = float(run._log_probabilities([(Example(episode.tokens, is_own),)]))
        assert found == pytest.approx(float(episode.log_probabilities.sum()), abs=1e-3)
    assert kinds == {(True, True), (True, False), (False, False)}


def test_a_search_is_right_in_the_words_of_the_demonstrator_only_and_a_call_if_it_is_as_good(tiny_base):
    sampler = Sampler(with_weights(tiny_base)._model, Encoder(tiny_base), TAUGHT)
    openings = sampler.openings(drawn_tasks(TAUGHT, "train", 1))

    def judge(opening, text):
        return sampler._seat(opening, ("a",))._teacher.judge(text)

    planned, searching = openings[0], openings[-1]
    call, is_right, leaves_hope = judge(planned, "")
    assert (is_right, leaves_hope) == (False, True)  # a turn is lost
    tool = call.removeprefix("<tool_call> ").removesuffix("</tool_call>")
    assert tool in default_library().names
    assert judge(planned, call) == (call, True, True)
    assert judge(planned, f"I begin. <tool_call>{tool}</tool_call>") == (call, True, True)
    assert judge(planned, FINISH_TEXT) == (call, False, False)
    assert judge(planned, "<tool_call>utility_helper</tool_call>") == (call, False, True)
    search, *_ = judge(searching, "")
    assert search.startswith("<tool_search>")
    assert judge(searching, search) == (search, True, True)
    assert judge(searching, "<tool_search>other words</tool_search>") == (search, False, True)
    assert judge(searching, f"<tool_call>{tool}</tool_call>") == (search, False, True)  # a name that it did not read of


def test_a_call_that_is_as_good_as_the_demonstrators_is_right_if_it_has_read_of_it(tiny_base):
    lax = TAUGHT.model_copy(update={"plan_margin": 1.0, "prompts": ("optimal",)})
    sampler = Sampler(with_weights(tiny_base)._model, Encoder(tiny_base), lax)
    opening = sampler.openings(drawn_tasks(lax, "train", 1))[0]
    other = opening[1].required_tools[-1]
    assert len(opening[1].required_tools) > 1
    said = f"<tool_call>{other}</tool_call>"
    found = sampler._seat(opening, ("a",))._teacher.judge(said)
    assert (found.text, found.is_right) == (f"<tool_call> {other}</tool_call>", True)
    for tool in (other, opening[1].required_tools[0]):  # parameters that change nothing are not learned
        name = default_library()[tool].parameters[0].name
        filled = sampler._seat(opening, ("a",))._teacher.judge(f'<tool_call>{tool} {{"{name}": "a"}}</tool_call>')
        assert (filled.text, filled.is_right) == (f"<tool_call> {tool}</tool_call>", True)
    unread = sampler._seat(opening, ("a",))._teacher
    unread._agent._read.discard(other)
    assert not unread.judge(said).is_right


def test_a_search_that_was_not_sent_is_advised_again(tiny_base):
    sampler = Sampler(with_weights(tiny_base)._model, Encoder(tiny_base), TAUGHT)
    seat = sampler._seat(sampler.openings(drawn_tasks(TAUGHT, "train", 1))[-1], ("a",))
    first = seat._teacher.judge("")
    assert first.text.startswith("<tool_search>")
    for other in ("no tag at all", "<tool_call> invented</tool_call>", "<tool_search>other words</tool_search>"):
        seat.session.send(other)
        assert seat._teacher.judge("").text == first.text
    seat.session.send(first.text)
    assert seat._teacher.judge("").text != first.text


@pytest.mark.long
@pytest.mark.parametrize("own", [OWN, TAUGHT.model_copy(update={"explore": 0.5})])
def test_a_killed_run_of_own_episodes_ends_where_it_would_have_ended(tiny_base, tmp_path, own):
    told = []
    train(own, tmp_path / "run", told.append, tiny_base)
    assert [standing.num_samples for standing in told] == list(range(3, 6 * len(own.prompts) + 1, 3))
    assert all(standing.loss > 0.0 for standing in told)
    config = own.model_copy(update={"checkpoint_every": 1})

    def kill(standing):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "killed", kill, tiny_base)
    resumed = []
    train(config, tmp_path / "killed", resumed.append, tiny_base)
    assert [(standing.step, standing.loss) for standing in resumed] == [(at.step, at.loss) for at in told[1:]]
    assert (tmp_path / "killed" / ADAPTER_WEIGHTS_FILE).read_bytes() == (
        tmp_path / "run" / ADAPTER_WEIGHTS_FILE
    ).read_bytes()


def episode_of(outcome, values, regrets):
    message = np.repeat([-1, 0, -1, 1, -1, 2], 2)
    tokens = np.arange(len(message))
    return Played(tokens, message, np.zeros(12, np.float32), np.array(values), np.array(regrets), outcome)


def test_success_is_compared_within_a_group():
    outcomes = [1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 0]
    played = [episode_of(outcome, [0.5, 0.5, 0.5], [0.1, 0.0, 0.0]) for outcome in outcomes]
    found = np.array(credits_of(played, "success", 4))
    assert found.shape == (12, 3)
    assert (found == found[:, :1]).all()
    groups = found[:, 0].reshape(3, 4)
    np.testing.assert_allclose(groups.mean(axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(groups.std(axis=1), [1.0, 0.0, 1.0])
    assert groups[0, 0] > 0.0 > groups[0, 1]


def test_an_advantage_is_compared_with_what_others_said_at_the_same_place():
    regrets = ([0.1, 0.2, 0.0], [0.0, 0.1, 0.0], [0.2, 0.0, 0.0])
    same, better, other = (episode_of(0, [0.5, 0.4, 0.3], own) for own in regrets)
    other.tokens[2] = 99  # its first message differs, and so do all places after it
    better.tokens[6] = 98  # its second message does
    found = credits_of([same, better, other], "advantage", 3)
    expected = [[0.0, -0.1, 0.0], [0.15, 0.1, 0.0], [-0.15, 0.0, 0.0]]
    for mine, wanted in zip(found, expected, strict=True):
        assert mine.tolist() == pytest.approx(wanted)
    alone = credits_of([same, better, other], "advantage", 1)
    assert [each.tolist() for each in alone] == [[-0.1, -0.2, 0.0], [0.0, -0.1, 0.0], [-0.2, 0.0, 0.0]]


def test_only_messages_with_a_credit_are_learned_and_none_where_all_is_lost():
    episode = episode_of(0, [0.5, 0.4, 0.0], [0.1, 0.0, 0.0])
    (credit,) = credits_of([episode], "advantage", 1)
    assert credit.tolist() == [-0.1, 0.0, 0.0]
    learned = episode.learned(credit)
    assert learned.tokens.tolist() == [0, 1, 2, 3]
    assert learned.learned_credit.tolist() == pytest.approx([-0.1, -0.1])
    assert episode.learned(np.array([0.0, 0.0, -1.0])) is None
    whole = episode.learned(np.array([2.0, -3.0, 1.0]))
    assert whole.tokens.tolist() == list(range(8))
    assert whole.learned_credit.tolist() == [2.0, 2.0, -3.0, -3.0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["batch_size=8", "group_size=3"], "multiple of group_size, 3"),
        (["credit=success"], "expected at least 2"),
        (["credit=fame"], "credit"),
    ],
)
def test_groups_that_cannot_be_are_refused(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        load_config("cpu", settings=settings, stage="grpo")


def test_a_uniform_number_just_below_one_draws_a_token(tiny_base, monkeypatch):
    monkeypatch.setattr(sampling.Draws, "bits", lambda draws: 2**53 - 1)
    monkeypatch.setattr(sampling, "Session", OneChoice)
    model, encoder = with_weights(tiny_base)._model, Encoder(tiny_base)
    sampler = Sampler(model, encoder, OWN)
    for episode in sampler.play(sampler.openings(drawn_tasks(OWN, "train", 1))[:2], 0):
        said = episode.tokens[episode.message >= 0]
        assert (said < NUM_TOKENS).all()
        assert (episode.log_probabilities[episode.message >= 0] > -40.0).all()  # of a positive probability


def test_validation_in_process_plays_the_episodes_of_an_evaluation(tiny_base, monkeypatch):
    config = SMALL.model_copy(update={"validation_episodes": 2, "prompts": ("optimal", "flawed")})
    tasks, encoder = drawn_tasks(config, "validation", 2), Encoder(tiny_base)
    model = with_weights(tiny_base, config)._model
    started, said = [], iter([FINISH_TEXT] * 8)

    class Spoken(_Seat):
        def send(self):
            started.append((self.session.reply.text, self.session._seed))
            text = next(said)
            self.session.send(text)

        def mend(self):
            return 0

    monkeypatch.setattr(sampling, "_Seat", Spoken)
    monkeypatch.setattr(adapter_validation, "MESSAGE_TOKENS", 2)
    found = adapter_validation.validate_in_process(model, encoder, tasks, config, "cpu")
    assert found["success"] == 0.0
    assert found["shares"].keys() == {"optimal", "flawed"}
    env = ConversationEnv(EnvironmentSettings(prompt_style="terse", salt=VALIDATION_SALT))
    expected = [
        (env.reset(seed=seed, options={"task": task, "prompt": prompt})[0], seed)
        for prompt in ("optimal", "flawed")
        for task in tasks
        for seed in range(2)
    ]
    assert started == expected
    with TemporaryDirectory() as folder:
        result = evaluate(
            [_Finisher],
            list(tasks),
            ("optimal", "flawed"),
            2,
            out=folder,
            prompt_style="terse",
            salt=VALIDATION_SALT,
            progress=False,
        )
    optima = sum(row.optimum.value for row in result.rows)
    assert found["share"] == pytest.approx(sum(row.luck_adjusted.value for row in result.rows) / optima)


class _Finisher:
    """A policy that says at once that it is done."""

    name = "finisher"

    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        return FINISH_TEXT


def test_greedy_says_the_likeliest_token(tiny_base, monkeypatch):
    monkeypatch.setattr(sampling, "Session", OneChoice)
    run, encoder = with_weights(tiny_base), Encoder(tiny_base)
    sampler = Sampler(run._model, encoder, OWN, greedy=True)
    (episode, *_) = sampler.play(sampler.openings(drawn_tasks(OWN, "train", 1))[:2], 0)
    tokens = torch.from_numpy(episode.tokens)[None]
    with torch.no_grad():
        likeliest = run._model.get_base_model()(input_ids=tokens).logits[0].argmax(-1)
    (places,) = np.nonzero(episode.message >= 0)
    assert episode.tokens[places].tolist() == likeliest[places - 1].tolist()
