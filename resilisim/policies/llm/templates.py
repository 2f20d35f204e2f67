"""The prompts of LLM agents: Markdown files beside the agent, each replaceable by a file of the user's."""

from __future__ import annotations

import functools
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import inside
from resilisim.provenance import content_hash
from resilisim.workflows.templating import read_template

EXAMPLES_NAME = "examples"
_SHARED = "resilisim.policies.llm"  # the package with the texts of all agents
NO_EXAMPLES, DEFAULT_EXAMPLES = "none", "default"


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The templates of one agent."""

    texts: Mapping[str, str]  # name without `.md` -> text with `${placeholders}`
    examples: str  # the few-shot examples; empty for none

    def fill(self, name: str, **values: str) -> str:
        """Return a template with its placeholders replaced; what stands in the values is not looked at again.

        `${examples}` are the agent's own unless the values say otherwise.
        """
        return string.Template(self.texts[name]).substitute({"examples": self.examples, **values}).strip()

    @property
    def hash(self) -> str:
        """SHA-256 of all texts: what a record says about the prompts that were used."""
        return content_hash([dict(self.texts), dict(packaged_texts(_SHARED)), self.examples])


def load_prompts(packaged: Mapping[str, str], folder: str | None, examples: str) -> PromptTexts:
    """Return the prompts of an agent: those that ship with it, replaced by files of the same name in a user's folder.

    `examples` are "none", "default", or a file. Refused are a folder or a file that does not exist, a file of an
    unknown name, and a template with a placeholder that does not exist, or without one of the packaged template.
    """
    texts = {**packaged, **({} if folder is None else _own_templates(Path(folder), packaged))}
    default = texts.pop(EXAMPLES_NAME, "")
    return PromptTexts(texts, _examples(examples, default))


def shared_text(name: str, **values: str) -> str:
    """Return a text that all agents' prompts have in common, with its placeholders replaced.

    Those for worlds are named `worlds/NAME`; the hash of prompts, which is older than they are, is without them.
    """
    folder, _, last = name.rpartition("/")
    return string.Template(packaged_texts(_SHARED, folder)[last]).substitute(values).strip()


def packaged_prompts(module: str) -> Mapping[str, str]:
    """Return the templates that ship with the agent in a module, by their names without `.md`.

    They lie beside the module: in `prompts/MODULE`, or in `prompts` where its package is that of one agent.
    """
    package, _, agent = module.rpartition(".")
    return packaged_texts(package, agent) or packaged_texts(package)


@functools.cache  # the user's files are read every time: they change while somebody works on them
def packaged_texts(package: str, agent: str = "") -> Mapping[str, str]:
    """Return the files `prompts/*.md` of a package, or `prompts/AGENT/*.md`; nothing if there are none."""
    if not package:  # an agent in a module of its own, outside of packages
        return {}
    folder = resources.files(package).joinpath("prompts").joinpath(agent)
    if not folder.is_dir():
        return {}
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".md"))
    return {name.removesuffix(".md"): folder.joinpath(name).read_text(encoding="utf-8") for name in files}


def _own_templates(folder: Path, packaged: Mapping[str, str]) -> dict[str, str]:
    if not os.path.isdir(folder):  # unlike the method, it takes a name that is too long
        raise InvalidInputError(f"templates={str(folder)!r} does not exist: expected a folder of .md files")
    texts = {}
    paths = sorted(folder.glob("*.md"))
    if not paths:
        names = ", ".join(f"{name}.md" for name in packaged)
        raise InvalidInputError(f"templates={str(folder)!r} holds no .md file: expected some of {names}")
    for path in paths:
        if path.stem not in packaged:
            raise unknown_name("template", path.name, [f"{name}.md" for name in packaged], str(folder))
        if path.stem == EXAMPLES_NAME:
            texts[path.stem] = _read(inside(folder, path, "template"), "template")
            continue
        placeholders = string.Template(packaged[path.stem]).get_identifiers()
        needed = [name for name in placeholders if name not in (EXAMPLES_NAME, "facts")]
        texts[path.stem] = read_template(path, placeholders, needed)
    return texts


def _examples(choice: str, default: str) -> str:
    if choice == NO_EXAMPLES:
        return ""
    if choice == DEFAULT_EXAMPLES:
        return default.strip()
    path = Path(choice)
    if not os.path.isfile(path):
        raise InvalidInputError(f"examples={choice!r}: expected none, default, or a file that exists")
    return _read(path, "examples").strip()


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{what} {str(path)!r} cannot be read: {error}") from None
