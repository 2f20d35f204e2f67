"""Generating tasks: seeded, streamed in constant memory, the same bytes for the same arguments everywhere.

Task number i is a function of (seed, i, the number's type, library, model): it can be made alone, and nothing is kept
between tasks but the candidates of each step and the phrasings that were looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from resilisim.bounds import Count, Seed, checked
from resilisim.errors import InvalidInputError, StoreError
from resilisim.provenance import describe_os_error
from resilisim.run_folder import is_stream, temporary_path
from resilisim.seeding import Draws
from resilisim.tasks.matching import Candidates, match_steps
from resilisim.tasks.scene import describe, draw_destination, draw_expected_outputs, draw_inputs, draw_scene
from resilisim.tasks.selection import ToolPool, draw_tools
from resilisim.tasks.task import (
    DEFAULT_CONSTRAINTS,
    TEMPLATES,
    SkeletonStep,
    Task,
    TaskTemplate,
    instance_id_of,
    quotas,
)
from resilisim.tasks.wording import GENERAL_ITEMS, PhraseBook
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import Retriever, ToolRetriever, default_retriever

DEFAULT_COUNT = 5040
GENERATED_AT = "2025-01-01T00:00:00+00:00"  # a constant, so that the same arguments give the same bytes
SALT = "resilisim/tasks/v2"  # of the draws; another recipe has another, so that its tasks have ids of their own


def generate_tasks(
    seed: int = 0, count: int = DEFAULT_COUNT, library: ToolLibrary | None = None, retriever: Retriever | None = None
) -> Iterator[Task]:
    """Generate tasks one by one, the types interleaved in their proportions.

    Args:
        seed: 0 to 2^63 - 1.
        count: How many, 1 or more.
        library: The tools; None takes the library of the retriever, or the default library.
        retriever: Search over that library; None takes the default model.

    Yields:
        Tasks, each different from every other of the same seed.

    Raises:
        InvalidInputError: Seed or count are out of range, the retriever searches another library, or no tool of the
            library can be asked for in words.

    Example:
        >>> from resilisim.tasks import generate_tasks
        >>> [task.complexity for task in generate_tasks(seed=7, count=3)]
        ['easy', 'medium', 'medium']
    """
    seed = checked(Seed, "seed", seed)
    count = checked(Count, "count", count)
    if library is None:
        library = default_library() if retriever is None else retriever.library
    if retriever is None:
        retriever = default_retriever(library)
    elif retriever.library != library:
        raise InvalidInputError("retriever: searches another tool library than the one given; expected the same")
    return _generate(seed, count, library, retriever)


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> int:
    """Write tasks to a JSON Lines file, canonical and one task a line, as they come.

    The file gets its name when it is whole; one that was there before stays until then.

    Returns:
        How many were written.

    Raises:
        StoreError: The file cannot be written.

    Example:
        >>> from resilisim.tasks import benchmark_tasks, write_tasks
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_tasks(f"{folder}/mine.jsonl", benchmark_tasks()[:20])
        20
    """
    target = Path(path)
    direct = is_stream(target)  # a pipe or a device has to be written to as it is
    place = target if direct else temporary_path(target)
    written = 0
    try:
        with place.open("w", encoding="utf-8", newline="\n") as stream:
            for task in tasks:
                stream.write(task.to_json() + "\n")
                written += 1
        if not direct:
            place.replace(target)
    except OSError as error:
        raise StoreError(f"tasks file {str(path)!r} cannot be written: {describe_os_error(error)}") from error
    finally:
        if not direct:
            place.unlink(missing_ok=True)
    return written


def type_sequence(count: int) -> Iterator[TaskTemplate]:
    """Yield the template of each place: largest-remainder quotas, so spread that each stays close to its share."""
    wanted = quotas(count)
    dealt = [0] * len(TEMPLATES)
    for place in range(1, count + 1):
        lag = [wanted[index] * place - dealt[index] * count for index in range(len(TEMPLATES))]
        index = max(range(len(TEMPLATES)), key=lag.__getitem__)
        dealt[index] += 1
        yield TEMPLATES[index]


def _generate(seed: int, count: int, library: ToolLibrary, retriever: Retriever) -> Iterator[Task]:
    by_default = isinstance(retriever, ToolRetriever) and retriever.model is None
    checked = by_default and library == default_library()
    book = PhraseBook(retriever, checked)
    usable = book.usable_tools(library)
    if not usable:
        raise InvalidInputError(
            "tool library: retrieval finds no tool by its own words; expected distinct descriptions"
        )
    candidates: dict[SkeletonStep, Candidates] = {}
    for step, matches in match_steps(library, retriever).items():
        leading = {tool: weight for tool, weight in matches.items() if tool in usable}
        candidates[step] = leading or dict.fromkeys(sorted(usable), 1.0)  # where no words lead to any of the step's
    pool = ToolPool(library, tuple(name for name in library.names if name in usable), candidates)
    for index, template in enumerate(type_sequence(count)):
        yield _make_task(template, seed, index, pool, book)


def _make_task(template: TaskTemplate, seed: int, index: int, pool: ToolPool, book: PhraseBook) -> Task:
    draws = Draws(SALT, seed, index)
    library, step_of = pool.library, draw_tools(template, draws, pool)
    names = tuple(step_of)
    operations = [library[name].operation if step is None else step.operation for name, step in step_of.items()]
    scene = draw_scene(draws, seed, index)
    first, last = library[names[0]], library[names[-1]]
    inputs = draw_inputs(first, scene, draws)
    destination: str | None = None
    if any(parameter.name == "destination" for parameter in last.parameters):
        stated = inputs.get("destination") if len(names) == 1 else None
        destination = stated if isinstance(stated, str) else draw_destination(last, scene, draws)
    expected_outputs = draw_expected_outputs(last, scene, draws, destination)
    items = [scene.artefact.items, *(draws.choice((scene.artefact.items, GENERAL_ITEMS)) for _ in names[1:])]
    tool_clauses = [draws.choice(book.phrases(library[name], each)) for name, each in zip(names, items, strict=True)]
    told_destination = None if inputs.get("destination") == destination else destination
    layout, description = describe(scene, tool_clauses, inputs, expected_outputs, told_destination, draws)
    return Task(
        instance_id=instance_id_of(template.task_type, names, inputs, expected_outputs, description),
        task_type=template.task_type,
        description=description,
        inputs=inputs,
        expected_outputs=expected_outputs,
        required_tools=names,
        constraints=dict(DEFAULT_CONSTRAINTS),
        complexity=template.complexity,
        metadata={
            "template": template.task_type,
            "layout": layout,
            "domain": scene.domain.key,
            "operations": operations,
            "generated_at": GENERATED_AT,
            "seed": seed,
            "index": index,
            "llm_generated": False,
            "inputs_generated_from": "rules",
            "semantic_generation": any(step is not None for step in step_of.values()),
        },
        original_description=description,
    )
