"""Texts for users say things in one way; docs/development/style.md says which, and why."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STYLE = ROOT / "docs/development/style.md"
# Pages of decisions and of the changelog tell what was; the specification's law has its own words.
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in ROOT.glob("docs/**/*.md")
        if "decisions" not in page.parts and page != STYLE and "_build" not in page.parts
    ),
]
UNWANTED = {
    r"[\d}\]] %(?![\w(\[{])": "79%, without a space",
    r"\bof yours\b": "your own",
    r"\bpip install resilisim\b": "it is on no index: install from a clone or a wheel",
    r"\bwho wants to\b": "a sentence with a subject",
    r"\bgoes on where it (?:was|stopped)\b": "resumes",
    r"\bluck,? (?:(?:which )?(?:is|was|are|be) )?(?:of the draws )?taken out\b": "luck is removed",
    r"\bsearch(?:ed|es)? by (?:meaning|words)\b|\bby meaning\b": "semantic, lexical search",
    r"\btak(?:e|es|ing) luck out\b": "removing luck",
    r"\bso often\b": "this many times",
    r"\bagain for more\b": "repeatable",
    r"\b(?:an?|any) [\w-]+ of (?:your|one's) own\b|\bof one's own\b": "your own",
    r"\ball else\b": "everything else",
    r"\btakes? it that\b": "assumes that",
    r"\bwhat (?:becomes|became|comes|came) of\b": "its result",
    r"\bas (?:often|many|far|long) as one (?:likes?|can|wants?)\b": "as you",
    r"\b(?:version|release) before\b": "the previous one",
    r"\bwhoever\b(?! orders)": "an agent that, a reader who",
    r"\bdoes? without\b": "works without",
    r"\b(?<!here )is no (?:folder|library|episode|list|text|number|set|file)\b": "is not a",
    r"\bgoes on with(?:out)?\b": "continues with",
    r"\blooks? whether\b": "checks whether",
    r"(?:^|[.;:|] +)Who (?:wants|gives|falls|always|calls|learns|looks|follows)\b[^?]*$": "a sentence with a subject",
}
# Between two parts of a text that the code writes on two lines.
_SPLIT = re.compile(r"""["']\s*\n\s*[fr]?["']""")


def _roughly(pattern: str) -> re.Pattern[str]:
    """Return a pattern that finds in lower case whatever another finds, without its slow look at each letter's case."""
    return re.compile(re.sub(r"(?<!\\)[A-Z]", lambda letter: letter.group().lower(), pattern).removeprefix(r"\b"))


@cache
def lines_of_pages() -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}:{number}", line)
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    ]


@cache
def texts_of_code() -> list[tuple[str, str]]:
    """Return what commands, reports and errors can say: every text in the code that is no docstring, but for help."""
    texts = []
    suspects = [_roughly(pattern) for pattern in UNWANTED]
    for path in sorted((ROOT / "resilisim").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lower = _SPLIT.sub("", source).lower()
        if not any(suspect.search(lower) for suspect in suspects):  # to parse all files takes seconds
            continue
        tree = ast.parse(source)
        docs = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and isinstance(node.body[0].value, ast.Constant)
        }
        is_command = "cli" in path.parts  # whose docstrings are its help
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and (is_command or node not in docs):
                texts.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
    return texts


@pytest.mark.parametrize("pattern", UNWANTED)
def test_nothing_that_users_read_says_it_otherwise(pattern: str) -> None:
    unwanted = re.compile(pattern, flags=re.IGNORECASE)
    texts = [*lines_of_pages(), *texts_of_code()]
    found = [f"{place}: {text.strip()}" for place, text in texts if unwanted.search(text)]
    assert not found, f"{UNWANTED[pattern]}:\n" + "\n".join(found)


def test_the_test_finds_what_it_looks_for() -> None:
    wrong = [
        "79.5 % of V*",
        "an agent of yours",
        "pip install resilisim",
        "who wants to see",
        "It goes on where it was.",
    ]
    wrong += ["with luck taken out", "tools are searched by meaning"]
    wrong += ["it comes from taking luck out of few episodes", "tried so often"]
    wrong += [
        "A file; again for more.",
        "a server of your own",
        "All else passes unchanged.",
        "V* takes it that none did.",
    ]
    wrong += [
        "what becomes of the episode",
        "as often as one likes",
        "the version before",
        "whoever plays it again",
        "only --plan does without",
        "runs is no folder of results",
        "it goes on with the next step",
        "it looks whether the card was charged",
        "Who falls more slowly waits.",
    ]
    assert len(wrong) == len(UNWANTED)
    for text, pattern in zip(wrong, UNWANTED, strict=True):
        assert re.search(pattern, text, flags=re.IGNORECASE), text
