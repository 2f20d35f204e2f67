from __future__ import annotations

import pytest

from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.config import PRESETS, TrainingConfig, load_config, make_config, preset_text


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_valid_configuration_that_comes_to_an_end(preset):
    config = load_config(preset)
    assert config.max_minutes is not None or config.max_steps is not None
    assert config.max_gradient_norm == 0.5
    assert make_config(config.to_mapping()) == config


def test_quick_and_full_train_what_the_optimum_maximises_and_paper_has_every_part():
    for preset in ("quick", "full"):
        config = load_config(preset)
        assert (config.law, config.reward, config.filters) == ("benchmark", "full_success", ())
        assert config.gamma == 1.0
        assert config.curriculum == "none"
        assert not any((config.reward_adjustment, config.patterns, config.adaptive_entropy))
    paper = load_config("paper")
    assert (paper.law, paper.reward) == ("training", "two_phase")
    assert paper.filters == ("semantic", "dependency", "constraint")
    assert paper.curriculum == "paper"
    assert all((paper.reward_adjustment, paper.patterns, paper.adaptive_entropy, paper.monitors))
    assert (paper.learning_rate, paper.learning_rate_schedule, paper.entropy) == (3e-4, "adaptive", 0.01)


def test_later_sources_win(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("width: 64\nseed: 3\nfilters: [dependency]\n", encoding="utf-8")
    config = load_config("paper", file, ["seed=4", "max-steps = 100"], seed=5, device=None)
    assert (config.width, config.seed, config.filters, config.max_steps) == (64, 5, ("dependency",), 100)
    assert config.law == "training"
    assert config.device == "auto"


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("learning_rate=3e-4", "learning_rate", 3e-4),
        ("filters=constraint, semantic", "filters", ("semantic", "constraint")),
        ("filters=none", "filters", ()),
        ("curriculum=optimum", "curriculum", "optimum"),
        ("attention_tokens=none", "attention_tokens", None),
        ("patience=7", "patience", 7),
    ],
)
def test_settings_are_read_as_people_write_them(setting, field, value):
    assert getattr(load_config(settings=[setting]), field) == value


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("num_env=3", ["'num_env'", "'num_envs'"]),
        ("num_envs=many", ["num_envs", "many", "a whole number, at least 1"]),
        ("law=bench", ["law", "bench", "did you mean 'benchmark'?"]),
        ("filters=semantik", ["filters", "semantik", "did you mean 'semantic'?"]),
        ("gamma=nan", ["gamma", "nan", "at least 0 and at most 1"]),
        ("curriculum=7", ["curriculum", "7", "none, paper, optimum"]),
        ("curriculum=true", ["curriculum", "true", "none, paper, optimum"]),
        ("device=gpu", ["device", "gpu", "cpu"]),
        ("heads=5", ["heads is 5", "divisor of width", "32"]),
        ("batch_size=9999999", ["batch_size is 9999999", "num_envs x rollout_steps"]),
        ("max_minutes=none", ["max_steps", "max_minutes", "at least one"]),
        ("libraries=randm", ["libraries", "randm", "did you mean 'random'?"]),
        ("patience=-3", ["patience", "-3", "or null"]),
        ("seed", ["'seed'", "key=value"]),
        (("curriculum=paper", "reward=value"), ["curriculum is 'paper'", "'value'"]),
        (("curriculum=optimum", "law=training"), ["curriculum is 'optimum'", "training law"]),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(setting, words):
    with pytest.raises(InvalidInputError) as refused:
        load_config(settings=[setting] if isinstance(setting, str) else setting)
    text = str(refused.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize("setting", ["network=mlp", "law=rate-limits", "patterns=true", "filters=semantic"])
def test_random_libraries_refuse_what_belongs_to_one(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(
        InvalidInputError, match=rf"{name} is \S*{value}\S* with random libraries".replace("true", "True")
    ):
        load_config("generalist", settings=[setting])


def test_truth_is_no_number_and_files_are_checked(tmp_path):
    with pytest.raises(InvalidInputError, match=r"field 'num_envs': got .true"):
        make_config({"num_envs": True, "max_steps": 1})
    for text, words in (
        ("- a\n", "holds a list"),
        ("a: [", "not valid YAML"),
        ("width: wide", "field 'width': got .wide"),
    ):
        file = tmp_path / "config.yaml"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInputError, match=words) as refused:
            load_config("quick", file)
        assert "\n" not in str(refused.value)
    with pytest.raises(InvalidInputError, match=r"did you mean .*config\.yaml"):
        load_config("quick", tmp_path / "confg.yaml")
    with pytest.raises(InvalidInputError, match=r"unknown preset 'papr': did you mean 'paper'"):
        load_config("papr")


def test_presets_name_real_settings_and_the_table_explains_each():
    documented = str(TrainingConfig.__doc__)
    for field in TrainingConfig.model_fields:
        assert f"{field}: " in documented
    for preset in PRESETS:
        lines = [line.partition(":")[0] for line in preset_text(preset).splitlines() if line and line[0] != "#"]
        assert len(lines) == len(set(lines))
        assert set(lines) <= set(TrainingConfig.model_fields)
