"""Pages name what exists, deny nothing that exists, and their install lines work.

A world, a part of a law, a door or an agent that is added is named here, or a test fails.
"""

from __future__ import annotations

import dataclasses
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import resilisim.integrations
from resilisim import __version__
from resilisim.cli.main import COMMANDS, load_command
from resilisim.policies.registry import LLM_POLICIES
from resilisim.simulator import Law
from resilisim.worlds import world_names

ROOT = Path(__file__).resolve().parent.parent
PARTS = [field.name for field in dataclasses.fields(Law) if field.default is None]
# Decisions tell what was; every other page tells what is.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md")))
    if not {"decisions", "_build"} & set(page.parts)
]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_every_world_is_named_where_worlds_are_listed() -> None:
    first_cells = re.findall(r"^\| (`[^|]+`) \|", text_of("docs/environments/worlds.md"), flags=re.MULTILINE)
    named = {name for cell in first_cells for name in re.findall(r"`([\w-]+)[:`]", cell)}
    assert named - {"--tasks"} == set(world_names())


def test_every_part_of_a_law_has_a_section_and_is_counted() -> None:
    sections = re.findall(r"^## (\w+)$", text_of("docs/environments/failure-models.md"), flags=re.MULTILINE)
    assert sections == PARTS
    assert f"by a law with up to {len(PARTS)} [parts]" in text_of("docs/comparison.md")


def test_every_command_has_a_page_and_every_page_a_command() -> None:
    pages = {page.stem for page in (ROOT / "docs/reference/commands").glob("*.md")} - {"index"}
    assert pages == set(COMMANDS)


# Where each module of `resilisim.integrations` is described, and a word that its page must have.
DESCRIBED = {
    "inspect_task": ("docs/integrations/inspect.md", "inspect eval resilisim/workflow"),
    "mcp": ("docs/integrations/mcp-servers.md", "resilisim mcp proxy"),
    "openenv_server": ("docs/integrations/openenv.md", "resilisim.integrations.openenv_server"),
    "pytest_tests": ("docs/guides/gates-and-tests.md", "@pytest.mark.resilisim"),
    "trl": ("docs/integrations/trl.md", "resilisim.integrations.trl"),
    "verifiers_env": ("docs/integrations/verifiers.md", "resilisim-verifiers"),
}
SHARED = {"episodes"}  # what the harnesses of others have in common


def test_every_integration_has_a_page() -> None:
    modules = {module.name for module in pkgutil.iter_modules(resilisim.integrations.__path__)}
    assert modules - SHARED == set(DESCRIBED)
    assert not [page for page, word in DESCRIBED.values() if word not in text_of(page)]


# Doors by which agents and tools come in: what the README must have, and the command (with an option) that it is.
DOORS = {
    "--agent ": ("evaluate", "--agent"),
    "--agent-command": ("evaluate", "--agent-command"),
    "resilisim mcp serve": ("mcp", "serve"),
    "resilisim mcp proxy": ("mcp", "proxy"),
    "resilisim inject": ("inject", "run"),
    "docs/guides/traces.md": ("traces", "read"),
    "resilisim gate": ("gate", "--margin"),
    "pytest marker": None,
    "docs/guides/own-functions.md": None,
}


def names_below(command: Any) -> set[str]:
    """Return the names of the commands of a group, or the options of a command."""
    options = {option for parameter in command.params for option in parameter.opts}
    return options | set(getattr(command, "commands", {}))


def options_by_command(command: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], set[str]]:
    """Return the options of a command and of those below it."""
    options = {
        path: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    }
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        options |= options_by_command(command.get_command(None, name), (*path, name))
    return options


COMMAND = re.compile(
    r"(?<!import )\bresilisim ((?:[a-z]+ )+)((?:[^\n`|\\]|\\\n)*)"
)  # its words, and what follows on its line
# Options of other programs that pages name.
FOREIGN = {"--api-key", "--env", "--epochs", "--message-limit", "--no-deps", "--resilisim-force", "--resilisim-plays"}
FOREIGN |= {"--shift", "--solver", "--time-limit", "--help"}


def unknown_options(text: str, options: dict[tuple[str, ...], set[str]]) -> list[str]:
    """Return the options in a page that no command has, or not the one that it is shown with."""
    known = set().union(*options.values()) | FOREIGN
    unknown = [name for name in re.findall(r"`(--[a-z][\w-]*)", text) if name not in known]
    for command in COMMAND.finditer(text):
        words = tuple(command.group(1).split())
        path = next((words[:count] for count in (3, 2, 1) if words[:count] in options), None)
        if path is not None:
            shown = re.split(r" -- |[;&>#]|\"resilisim ", command.group(2))[0]
            given = re.findall(r"(?<![\w-])--[a-z][\w-]*", shown)
            unknown += [f"{' '.join(path)} {name}" for name in given if name not in options[path] | {"--help"}]
    return unknown


def test_every_option_on_a_page_exists() -> None:
    options: dict[tuple[str, ...], set[str]] = {}
    for name in COMMANDS:
        options |= options_by_command(load_command(name, *COMMANDS[name]), (name,))
    found = {str(page.relative_to(ROOT)): unknown_options(page.read_text(encoding="utf-8"), options) for page in PAGES}
    assert not {page: names for page, names in found.items() if names}
    wrong = "`--tolerance` and `resilisim runs compare a b --alpha 1`, `resilisim bound --tools a`"
    assert unknown_options(wrong, options) == ["--tolerance", "runs compare --alpha", "bound --tools"]


def test_the_readme_names_every_door_and_every_door_exists() -> None:
    readme = text_of("README.md")
    assert not [door for door in DOORS if door not in readme]
    for name, below in filter(None, DOORS.values()):
        assert below in names_below(load_command(name, *COMMANDS[name]))


def test_the_readme_counts_and_names_the_agents_with_language_models() -> None:
    numbers = ("Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
    sentence = re.search(r"(\w+) language-model agents\s+\(([^)]+)\)", text_of("README.md"))
    assert sentence is not None
    count, names = sentence.groups()
    assert numbers.index(count) + 5 == len(LLM_POLICIES)
    plain = {name.replace("-", "") for name in LLM_POLICIES}
    assert {re.sub(r"[\s-]", "", name).lower() for name in names.split(",")} == plain


def test_its_own_rows_of_the_comparison_name_what_it_stands_on() -> None:
    rows = re.findall(r"^\| \*\*ResiliSim\*\* .*", text_of("docs/comparison.md"), flags=re.MULTILINE)
    assert len(rows) == 3
    words = (
        "worlds",
        "your functions",
        "MCP servers",
        "traces",
        "programs",
        "gate",
        "pytest",
        "luck",
        "optimum",
        "proxy",
    )
    assert not [word for word in words if word not in " ".join(rows)]


def test_the_comparison_says_of_every_project_whether_it_was_run_or_read() -> None:
    text = text_of("docs/comparison.md")
    first, rest = text.split("## Benchmarks and measures")
    tables = rest.split("## Beside benchmarks of workflows")[0]
    rows = [line.split(" | ")[0] for line in tables.splitlines() if line.startswith("| [")]
    assert len(rows) >= 20
    assert not [row for row in rows if not re.search(r"\]\(https://[^)]+\)[\w. ]*, (?:read|run)$", row)]
    ran = re.findall(r"\[([\w-]+)\]\([^)]+\)[\w. ]*, run$", "\n".join(rows), flags=re.MULTILINE)
    assert sorted(ran) == sorted(re.findall(r"^- ([\w-]+):", tables.split("### What was run")[1], flags=re.MULTILINE))
    assert "2026" in first


FEATURES = (
    r"worlds?|MCP|prox(?:y|ies)|rate limits?|outages?|wrong (?:results?|outputs?|answers?)|corrupt\w*|slow answers?|"
    r"GPUs?|pytest|traces?|gates?|notebooks?|own (?:functions|tools|agents)|real (?:tools|APIs|functions)|"
    r"parallel calls"
)
DENIED = (
    r"(?:is|are|was|were)(?: not|n't) (?:yet )?(?:part of|supported|implemented|available|modelled|covered|simulated)|"
    r"not yet|no support for|coming soon|(?:is|are) planned|(?:ResiliSim|this version) (?:has|knows|needs) no"
)
DENIALS = {
    rf"(?:\b(?:{DENIED})\b[^.|]*\b(?:{FEATURES})\b|\b(?:{FEATURES})\b[^.|]*\b(?:{DENIED})\b)": "it exists",
    r"\bfirst release\b": "nothing was released before 0.2.0: name a commit or a version",
    r"\b(?:future|next|later) (?:release|version)s? will\b": "pages tell what is",
}


def denials(text: str) -> list[str]:
    flat = re.sub(r"\s*\n(?=[^\n|#-])", " ", text)  # a sentence may break anywhere
    return [match.group() for pattern in DENIALS for match in re.finditer(pattern, flat, re.IGNORECASE)]


def test_no_page_denies_what_exists() -> None:
    found = {str(page.relative_to(ROOT)): denials(page.read_text(encoding="utf-8")) for page in PAGES}
    assert not {page: phrases for page, phrases in found.items() if phrases}


@pytest.mark.parametrize(
    "wrong",
    [
        "Rate limits and outages are\nnot part of the law.",
        "Parallel calls are not supported.",
        "There is not yet a gate.",
        "as in the first release",
        "A later version will have it.",
    ],
)
def test_denials_are_found(wrong: str) -> None:
    assert denials(wrong)


INSTALL = re.compile(
    r"\b(?:pip3? install|pipx install|uv (?:pip install|add|tool install)|uvx|poetry add|conda install)\b([^(\n]*)"
)
EXTRAS = re.compile(r"\[([\w,-]+)\]")


def install_mistakes(text: str, extras: set[str]) -> list[str]:
    """Return the install lines that don't work: from an index, of another version, or with an unknown extra."""
    mistakes = []
    for command in INSTALL.finditer(text):
        for word in re.split(r"[\s'\"`]+", command.group(1)):
            is_ours = word.startswith(".[") or "resilisim" in word.lower()
            named = {extra for found in EXTRAS.findall(word) for extra in found.split(",")} if is_ours else set()
            wheel = re.match(r"(?:dist/)?resilisim-([^-]+)-py3-none-any\.whl", word)
            from_index = word.lower().startswith("resilisim") and wheel is None
            if from_index or named - extras or (wheel and wheel.group(1) != __version__):
                mistakes.append(command.group().strip())
    return mistakes


def test_install_lines_work_today() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))
    extras = set(project["project"]["optional-dependencies"])
    sources = [*PAGES, *sorted(ROOT.glob("resilisim/**/*.py")), *sorted(ROOT.glob("examples/**/*.py"))]
    found = {page: install_mistakes(page.read_text(encoding="utf-8"), extras) for page in sources}
    # the style page shows what not to write
    assert not {page: lines for page, lines in found.items() if lines and page.name != "style.md"}
    for wrong in ("pip install resilisim", "uv add 'resilisim[llm]'", "pip install '.[nothing]'"):
        assert install_mistakes(wrong, extras)
    assert install_mistakes("pip install dist/resilisim-0.0.9-py3-none-any.whl", extras)
    assert not install_mistakes("pip install -c constraints.txt '.[llm,retrieval]'", extras)
