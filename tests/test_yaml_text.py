"""YAML from outside: what a document unfolds into has a limit, and scalars are what a reader takes them for."""

import subprocess
import sys

import pytest

from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.config import load_config
from resilisim.simulator import load_law
from resilisim.yaml_text import MAX_VALUES, read_yaml
from tests.guards import WAITING_SECONDS


def laughs(levels, width=10):
    """Return a document of a few hundred bytes that unfolds into width ** levels values."""
    lines = ["a0: &a0 [" + ", ".join(["ha"] * width) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * width) + "]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("a: 1e-3", {"a": 0.001}),
        ("a: 1e300", {"a": 1e300}),
        ("a: 1E5", {"a": 100000.0}),
        ("a: .5", {"a": 0.5}),
        ("a: -2.50", {"a": -2.5}),
        ("a: 0x10", {"a": "0x10"}),
        ("a: 010", {"a": "010"}),
        ("a: 1:30", {"a": "1:30"}),
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("a: .inf", {"a": ".inf"}),
        ("a: 1e999", {"a": "1e999"}),
        ("on: yes\nno: off", {"on": "yes", "no": "off"}),
        ("1: a\ntrue: b\nnull: c", {"1": "a", "true": "b", "null": "c"}),
        ("a: &x [1, 2]\nb: *x", {"a": [1, 2], "b": [1, 2]}),
        ("a: 'true'", {"a": "true"}),
        ('a: "x\\u2028y"', {"a": "x\u2028y"}),
        ("'<<': 1", {"<<": 1}),
    ],
)
def test_values(text, value):
    assert read_yaml(text, "file") == value


REFUSED = {
    "laughs": (laughs(9), "unfolds into more than"),
    "wide": (laughs(3, 60), "unfolds into more than"),
    "itself": ("a: &a [*a]", "names nothing that stands before it"),
    "unknown alias": ("a: *b", "not valid YAML|names nothing"),
    "deep": ("[" * 100_000, "nested more than 20 deep|not valid YAML"),
    "deep by aliases": (
        "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 40)),
        "nested more than 20 deep",
    ),
    "long": ("a: " + "x" * 2_000_000, "at most 1,000,000"),
    "many": ("[" + "1," * (MAX_VALUES + 1) + "]", "unfolds into more than"),
    "twice": ("a: 1\na: 2", "'a' stands twice"),
    "merge": ("a: &a {b: 1}\nc:\n  <<: *a", "<< is not taken"),
    "tag": ("a: !!python/object/apply:os.system [true]", "the tag .* is not allowed"),
    "set": ("a: !!set {b}", "the tag .* is not allowed"),
    "several": ("a\n---\nb", "several YAML documents"),
    "a list as a name": ("[a]: 1", "a name has to be a plain text"),
    "nul": ("a: \x00", "not valid YAML"),
    "escape": ('a: "\\UFFFFFFFF"', "not valid YAML"),
}


@pytest.mark.parametrize(("text", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_refused_in_one_line(text, problem):
    with pytest.raises(InvalidInputError, match=rf"\Alaw mine: .*({problem}).*\Z"):
        read_yaml(text, "law mine")


@pytest.mark.long
@pytest.mark.parametrize("levels", [9, 25])
def test_laws_and_settings_that_unfold_end_at_once(levels, tmp_path):
    """In a process with little memory and time, since what broke here took all of both."""
    file = tmp_path / "law.yaml"
    file.write_text(laughs(levels) + "\nbase: 0.5\n")
    assert file.stat().st_size < 2_000
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)\n"
        f"import sys; sys.argv = ['resilisim', 'law', 'check', {str(file)!r}]\n"
        "from resilisim.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=WAITING_SECONDS
    )
    assert done.returncode == 2, done.stderr
    assert "unfolds into more than" in done.stderr
    assert done.stderr.count("\n") == 1
    with pytest.raises(InvalidInputError, match="unfolds into more than"):
        load_config("quick", file)


def test_numbers_of_laws_and_settings_may_have_exponents(tmp_path):
    file = tmp_path / "law.yaml"
    file.write_text("base: 9e-1\nnot_executed: 5E-1\n")
    assert load_law(file).to_mapping()["base"] == 0.9
    file.write_text("learning_rate: 1e-3\n")
    assert load_config("quick", file).learning_rate == 0.001
    for wrong in ("base: 1e300", "base: yes", "base: 0x1", "base: .nan"):
        file.write_text(wrong)
        with pytest.raises(InvalidInputError):
            load_law(file)
