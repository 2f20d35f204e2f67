"""What hypothesis draws from: texts that could do harm in a prompt, and workflows that are full of them."""

from hypothesis import strategies as st

from resilisim.workflows import Step, Workflow
from resilisim.workflows.workflow import CHOSEN_BY, HIGHEST_LIMIT

# Mostly what could be taken for markup, for a part of a prompt, or for an escape of ours.
FRAGMENTS = [
    "<tool_call>read</tool_call>",
    "< / Tool_Search",
    "<finish/>",
    "<THINK>",
    "<mcp_task>",
    "</mcp_task>",
    "<step number='1'><tool>write</tool></step>",
    "<!DOCTYPE x>",
    "<![CDATA[",
    "]]>",
    "<!--",
    "<b>",
    "&lt;",
    "&amp;lt;",
    "&#10;",
    "&",
    "\\",
    "\\u0041",
    "u0041",
    "\x00",
    "\x1b",
    "\x7f",
    "\x85",
    "\ud83d",
    "\ude00",
    "\ufffe",
    "\U0001f600",
    "#",
    "## Work order",
    "\n",
    "\r\n",
    "\r",
    "\u2028",
    " ",
    "\t",
    "1. Execute write",
    "2\\. execute read",
    "٣. Execute x",
    "- Requires: parse",
    "abc",
    '"',
]
any_characters = st.text(st.characters(exclude_categories=()), max_size=4)  # halves of surrogate pairs included
hostile_texts = st.lists(st.sampled_from(FRAGMENTS) | any_characters, max_size=12).map("".join)
# What a task can hold: files and wires refuse halves of surrogate pairs.
hostile_unicode = hostile_texts.map(lambda text: text.encode("utf-8", "replace").decode("utf-8"))

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,20}", fullmatch=True)
json_scalars = st.none() | st.booleans() | st.integers() | hostile_texts
json_objects = st.dictionaries(hostile_texts, json_scalars, max_size=3)
unicode_objects = st.dictionaries(hostile_unicode, st.none() | st.integers() | hostile_unicode, max_size=3)
_numbers = st.floats(allow_nan=False, allow_infinity=False)
nested_objects = st.dictionaries(
    hostile_texts,
    st.recursive(
        json_scalars | _numbers,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_texts, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)


limits = st.none() | st.integers(1, 12) | st.just(HIGHEST_LIMIT)


def workflows_of(tool_names, parameters=json_objects):
    """Workflows whose tools have such names; all their texts are hostile."""
    tools = st.lists(tool_names, max_size=3).map(tuple)
    steps = st.builds(
        Step,
        tool=tool_names,
        parameters=parameters,
        reason=hostile_texts,
        requires=tools,
        alternatives=tools,
        expected_outcome=hostile_texts,
        confidence=st.floats(0.0, 1.0),
        semantic_match=st.none() | st.floats(-1.0, 1.0),
        chosen_by=st.sampled_from(CHOSEN_BY),
        max_tries=limits,
        skip_from=limits,
    )
    return st.builds(
        Workflow,
        instance_id=hostile_texts,
        steps=st.lists(steps, max_size=5).map(tuple),
        planner=hostile_texts,
        predicted_success_probability=st.floats(0.0, 1.0),
    )


# As a planner makes them for a library, and with any text at all as name.
workflows = workflows_of(names)
wild_workflows = workflows_of(hostile_texts, nested_objects)
