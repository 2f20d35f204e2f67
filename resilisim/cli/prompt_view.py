"""How a prompt is shown to people, with what a flaw changed in it marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from rich.text import Text

from resilisim.cli.output import console, plain, table
from resilisim.workflows.plan_value import PlanCosts

# What stands in the margin of a line, and its colour: the marks say the same where there are no colours.
KEPT, ADDED, GONE = " ", "+", "-"
STYLES: Mapping[str, str] = {KEPT: "", ADDED: "green", GONE: "red"}

# A step's number says nothing about what was done to it: it changes when a step before it comes or goes.
_NUMBER = re.compile(r'^(\s*)\d+(?:\.(?= Execute )|(?= [^\s(]+\())|(?<=<step number=")\d+(?=")')


def print_prompt(record: Mapping[str, Any]) -> None:
    """Print the text of a prompt."""
    console().print(plain(record["text"]), soft_wrap=True)


def print_flawed(record: Mapping[str, Any], sound_text: str, sound_costs: PlanCosts) -> None:
    """Print a flawed prompt with its edits marked, a list of the edits, and what obeying costs.

    Args:
        record: The prompt's record.
        sound_text: The prompt with the plan as it was before.
        sound_costs: What obeying that plan is worth.
    """
    out = console()
    for mark, line in marked_lines(sound_text, record["text"]):
        out.print(Text(f"{mark} ", STYLES[mark]) + plain(line, STYLES[mark]), soft_wrap=True)
    flaw, costs = record["flaw"], record["costs"]
    out.print(plain(f"{flaw['type']}, {flaw['method']}, {flaw['severity']}", "bold"))
    out.print(
        table(
            "what was changed", ["step", "was step", "what", "before", "after"], [_row(edit) for edit in flaw["edits"]]
        )
    )
    rows = [
        ["obeyed to the letter, full success", sound_costs.obey, costs["obey"]],
        ["obeyed to the letter, share of required tools in order", sound_costs.obey_coverage, costs["obey_coverage"]],
        ["the best that an agent can do (V*)", sound_costs.deviate, costs["deviate"]],
    ]
    out.print(table("what the plan is worth", ["", "sound", "flawed"], rows))
    price, sound_price = costs["deviate"] - costs["obey"], sound_costs.price_of_obedience
    out.print(f"price of obedience (V* - obeyed): {price:.4f}; of the sound plan: {sound_price:.4f}")


def marked_lines(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield every line of a text, and those of another that it lost, each with its mark."""
    old, new = before.split("\n"), after.split("\n")
    matcher = SequenceMatcher(None, [_key(line) for line in old], [_key(line) for line in new], autojunk=False)
    for _, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        same = [_key(line) for line in old[old_from:old_to]] == [_key(line) for line in new[new_from:new_to]]
        if not same:
            yield from ((GONE, line) for line in old[old_from:old_to])
        yield from ((KEPT if same else ADDED, line) for line in new[new_from:new_to])


def _key(line: str) -> str:
    return _NUMBER.sub(r"\1", line)


def _row(edit: Mapping[str, Any]) -> list[str]:
    where, what = edit["where"], edit["what"].replace("_", " ")
    parameter = where["parameter"]
    return [
        str(where["step"]),
        str(where["original_step"] or "-"),
        f"{what}: {parameter}" if parameter else what,
        edit["before"] or "-",
        edit["after"] or "-",
    ]
