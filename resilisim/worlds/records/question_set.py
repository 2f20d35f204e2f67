"""Making a set of questions: each reference is really executed and has to give the answer, or the question goes.

An answer is right as a name, a number, or a list of names.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws, hash_words
from resilisim.tasks import Task
from resilisim.tasks.split import TRAIN_SHARE, VALIDATION_SHARE, Split
from resilisim.worlds.answers import answers_in, exact_match, list_overlap, number_in, number_match, token_overlap
from resilisim.worlds.base import Grade, ToolError, reference_calls, resolve_parameters
from resilisim.worlds.records.contents import GeneratedData, Records
from resilisim.worlds.records.questions.template import DIFFICULTIES, DOMAINS, QUESTION_TEMPLATES, Difficulty, Question
from resilisim.worlds.records.tools import RecordsWorkspace, records_library

_TRIES: Final = 400  # for one question
# How often an answer may be right within a template, and within a domain and difficulty: guessing it does not pay.
_SHARE_OF_TEMPLATE, _SHARE_OF_DOMAIN = 1 / 30, 1 / 50


def build_tasks(data: GeneratedData, records: Records, name: str) -> tuple[Task, ...]:
    """Return the questions that a recipe wants, domains and difficulties in turn.

    Args:
        data: What the questions are about.
        records: The same, as tools work on it: references are executed there.
        name: What the tasks call their world.

    Raises:
        InvalidInputError: The data is too small for as many questions.
    """
    importlib.import_module("resilisim.worlds.records.questions")
    columns = [_questions(data, records, domain, difficulty, name) for difficulty in DIFFICULTIES for domain in DOMAINS]
    return tuple(task for row in zip(*columns, strict=True) for task in row)


def _questions(
    data: GeneratedData, records: Records, domain: str, difficulty: Difficulty, world: str
) -> Iterator[Task]:
    templates, count = QUESTION_TEMPLATES[domain, difficulty], data.recipe.questions
    of_template = dict.fromkeys(templates, 0)
    answers: Counter[tuple[str, str]] = Counter()
    texts: set[str] = set()
    for number in range(count):
        template = list(templates)[number % len(templates)]
        draws = Draws("records", data.seed, "questions", domain, difficulty, template, number)
        for _ in range(_TRIES):
            question = templates[template](data, draws)
            if question is None or question.text in texts:
                continue
            keys = (template, question.answer_text), ("", question.answer_text)
            most = max(1, int(count / len(templates) * _SHARE_OF_TEMPLATE)), max(1, int(count * _SHARE_OF_DOMAIN))
            if any(answers[key] >= limit for key, limit in zip(keys, most, strict=True)):
                continue
            task = _task(question, domain, difficulty, template, world)
            if derived_answer(task, records) is not None:
                break
        else:
            problem = f"{count} questions for each domain and difficulty are too many for data of these sizes"
            raise InvalidInputError(f"{problem}: {domain}, {difficulty}, {template} gave {of_template[template]}")
        answers.update(keys)
        texts.add(question.text)
        of_template[template] += 1
        yield task


def _task(question: Question, domain: str, difficulty: str, template: str, world: str) -> Task:
    metadata: dict[str, Any] = {
        "world": world,
        "domain": domain,
        "difficulty": difficulty,
        "template": template,
        "split": split_of_question(question.text),
        "answers": [question.answer_text],
        "answer_kind": question.kind,
        "digits": question.digits,
        "reference": list(question.calls),
        "answer_from": {"value": question.source, "pattern": question.pattern},
    }
    fields = {
        "task_type": f"records_{domain}",
        "description": question.text,
        "required_tools": list(dict.fromkeys(call["tool"] for call in question.calls)),
        "complexity": difficulty,
        "metadata": metadata,
    }
    return Task.from_mapping(fields, records_library())


def split_of_question(text: str) -> Split:
    """Return the part of the data that a question belongs to, by the hash of its text: 70, 15 and 15 percent."""
    share = hash_words("resilisim/records/split/v1", text)[0] / 2**32
    if share < TRAIN_SHARE:
        return "train"
    return "validation" if share < TRAIN_SHARE + VALIDATION_SHARE else "test"


def derived_answer(task: Task, records: Records) -> str | None:
    """Return the answer that a task's reference really leads to, or None if that is not the right one."""
    workspace = RecordsWorkspace(records)
    results: dict[str, Any] = {}
    try:
        for call in reference_calls(task):
            output = workspace.call(call.tool, resolve_parameters(call.parameters, results))
            if call.save is not None:
                results[call.save] = json.loads(json.dumps(output))
        answer = _read(task.metadata["answer_from"], results)
    except (ToolError, InvalidInputError):
        return None
    finally:
        workspace.close()
    return answer if answer is not None and grade_answer(task, answer).correct else None


def _read(answer_from: Mapping[str, str], results: Mapping[str, Any]) -> str | None:
    value = resolve_parameters({"value": answer_from["value"]}, results)["value"]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not answer_from["pattern"]:
        return text.strip()
    match = re.search(answer_from["pattern"], text)
    return match[1] if match else None


def grade_answer(task: Task, answer: str | None) -> Grade:
    """Grade an answer by the right ones that the task's metadata hold.

    A name has to be the right one, normalised (case, articles and punctuation do not count). A number has to agree
    within half a unit of the last decimal that was asked for, whatever units stand around it. Of a list everything has
    to be there and nothing else; its score is F1.

    Example:
        >>> from resilisim.tasks import Task
        >>> from resilisim.worlds.records import grade_answer
        >>> from resilisim.worlds.records.tools import records_library
        >>> metadata = {"answers": ["12.35"], "answer_kind": "number", "digits": 2}
        >>> task = Task.from_mapping({"required_tools": ["Calculate"], "metadata": metadata}, records_library())
        >>> grade_answer(task, "about 12.3499 miles").correct, grade_answer(task, "12.4").correct
        (True, False)
    """
    right, kind = task.metadata["answers"], task.metadata["answer_kind"]
    if answer is None or not answer.strip():
        return Grade(False, 0.0, {"exact_match": False, "f1": 0.0})
    answer = answer.strip()
    if kind == "set":
        overlap = max(
            (list_overlap(answers_in(answer), answers_in(accepted)) for accepted in right), key=lambda found: found.f1
        )
        return Grade(overlap.f1 == 1.0, overlap.f1, {"exact_match": overlap.f1 == 1.0, "f1": overlap.f1})
    if kind == "number":
        # A little more than half a unit: a half may be rounded either way.
        tolerance = 0.505 * 10.0 ** -int(task.metadata["digits"])
        is_right = any(
            number_match(answer, number_in(accepted) or 0.0, absolute=tolerance, relative=1e-9) for accepted in right
        )
        return Grade(is_right, float(is_right), {"exact_match": is_right, "f1": float(is_right)})
    is_right = exact_match(answer, right)
    f1 = max(token_overlap(answer, accepted).f1 for accepted in right)
    return Grade(is_right, float(is_right), {"exact_match": is_right, "f1": f1})
