"""A library under drawn names, for who should read the names of tools and not know them by heart.

Dependencies, chances, parameters and texts stay as they are. A library's names share a style, as those of one team do.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Final

from resilisim.seeding import Draws
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.tool import Tool

_THINGS: Final = (
    *("account", "album", "badge", "basket", "beacon", "branch", "bundle", "cabin", "canvas", "cargo"),
    *("catalog", "channel", "claim", "clinic", "contract", "coupon", "desk", "dossier", "draft", "engine"),
    *("farm", "feed", "fleet", "folder", "garden", "gate", "grant", "graph", "guest", "image"),
    *("journal", "kernel", "label", "lane", "lease", "lesson", "locker", "loan", "map", "market"),
    *("menu", "module", "museum", "note", "offer", "order", "patient", "payroll", "permit", "plant"),
    *("policy", "printer", "profile", "quota", "recipe", "record", "region", "rental", "robot", "route"),
    *("sample", "school", "script", "season", "shelf", "signal", "stock", "studio", "survey", "table"),
    *("tariff", "theme", "token", "tower", "track", "train", "tunnel", "vault", "video", "voucher"),
)
_DEEDS: Final = (
    *("add", "apply", "assign", "attach", "balance", "book", "build", "cancel", "charge", "clean"),
    *("close", "collect", "copy", "count", "deliver", "draw", "edit", "enroll", "expand", "find"),
    *("fix", "flag", "freeze", "group", "hide", "import", "issue", "join", "keep", "lift"),
    *("link", "list", "lock", "mark", "move", "notify", "pack", "pick", "plan", "print"),
    *("publish", "pull", "push", "query", "read", "refund", "release", "remove", "renew", "repair"),
    *("reset", "resize", "review", "save", "scale", "scan", "sell", "send", "share", "sign"),
    *("sort", "split", "start", "stop", "store", "swap", "tag", "test", "trim", "update"),
)
_STYLES: Final[tuple[Callable[[str, str], str], ...]] = (
    lambda first, second: f"{first}_{second}",
    lambda first, second: f"{first}.{second}",
    lambda first, second: f"{first}-{second}",
    lambda first, second: first + second.capitalize(),
)
# Who only ever saw a few hundred words learns these, not to copy: half of the libraries have words that do not exist.
_MADE_UP_SHARE: Final = 0.5
_TELLING_SHARE: Final = 0.25
_ONSETS: Final = (*"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "fl", "gr", "pl", "pr", "sh", "sk", "st", "tr")
_VOWELS: Final = tuple("aeiou")
_CODAS: Final = ("", "", "", "", "l", "m", "n", "r", "s", "t")
_NUM_WORDS: Final = 12  # of a description: those at its beginning say most
_WORD: Final = re.compile(r"[a-z]{3,}")
_SILENT: Final = frozenset(
    {"all", "and", "any", "are", "can", "does", "each", "every", "for", "from", "gives", "has", "how", "into", "its"}
    | {"not", "one", "other", "out", "over", "own", "that", "the", "their", "them", "then", "they", "this", "through"}
    | {"under", "was", "what", "when", "where", "which", "while", "who", "will", "with", "without"}
)


def drawn_names(library: ToolLibrary, draws: Draws) -> dict[str, str]:
    """Return a new name for each tool, in half of the libraries two words that do not exist.

    In a quarter they are two words of the tool's description, in another quarter two that say nothing of it.
    """
    style, kind = draws.choice(_STYLES), draws.uniform()
    is_made_up, is_telling = kind < _MADE_UP_SHARE, kind >= 1.0 - _TELLING_SHARE
    made_up = ((_made_up_word(draws), _made_up_word(draws)) for _ in itertools.count())
    others = made_up if is_made_up else iter(draws.shuffled(list(itertools.product(_DEEDS, _THINGS))))
    names: dict[str, str] = {}
    taken: set[str] = set()
    for number, tool in enumerate(library):
        words = draws.shuffled(_pairs(tool)) if is_telling else []
        options = (style(*pair) for pair in itertools.chain(words, others))
        name = next((name for name in options if name.lower() not in taken), f"tool{number}")
        taken.add(name.lower())
        names[tool.name] = name
    return names


def _made_up_word(draws: Draws) -> str:
    """Return a word of two or three syllables."""
    syllables = [draws.choice(_ONSETS) + draws.choice(_VOWELS) for _ in range(draws.choice((2, 2, 3)))]
    return "".join(syllables) + draws.choice(_CODAS)


def _pairs(tool: Tool) -> list[tuple[str, str]]:
    """Return pairs of words of a tool's description, in its order."""
    words = _WORD.findall((tool.original_description or tool.description).lower())
    telling = [word for word in dict.fromkeys(words) if word not in _SILENT]
    return list(itertools.combinations(telling[:_NUM_WORDS], 2))


def renamed_library(library: ToolLibrary, names: Mapping[str, str]) -> ToolLibrary:
    """Return a library whose tools are called otherwise, without their aliases.

    Args:
        library: The library.
        names: The new name of each of its tools.
    """
    return ToolLibrary(
        dataclasses.replace(
            tool,
            name=names[tool.name],
            canonical_name=names[tool.name],
            aliases=(),
            dependencies=tuple(names[other] for other in tool.dependencies),
            equivalents=tuple(names[other] for other in tool.equivalents),
        )
        for tool in library
    )
