"""Whether an answer of the records world is right: a name, a number, or a list of names."""

from __future__ import annotations

from resilisim.tasks import Task
from resilisim.worlds.answers import answers_in, exact_match, list_overlap, number_in, number_match, token_overlap
from resilisim.worlds.base import Grade


def grade_answer(task: Task, answer: str | None) -> Grade:
    """Grade an answer by the right ones that the task's metadata hold.

    A name has to be the right one, normalised (case, articles and punctuation do not count). A number has to agree
    within half a unit of the last decimal that was asked for, whatever units stand around it. Of a list everything has
    to be there and nothing else; its score is F1.

    Example:
        >>> from resilisim.tasks import Task
        >>> from resilisim.worlds.records import grade_answer, records_library
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
        overlap = max((list_overlap(answers_in(answer), answers_in(one)) for one in right), key=lambda found: found.f1)
        return Grade(overlap.f1 == 1.0, overlap.f1, {"exact_match": overlap.f1 == 1.0, "f1": overlap.f1})
    if kind == "number":
        # A little more than half a unit: a half may be rounded either way.
        tolerance = 0.505 * 10.0 ** -int(task.metadata["digits"])
        is_right = any(number_match(answer, number_in(one) or 0.0, absolute=tolerance, relative=1e-9) for one in right)
        return Grade(is_right, float(is_right), {"exact_match": is_right, "f1": float(is_right)})
    is_right = exact_match(answer, right)
    f1 = max(token_overlap(answer, one).f1 for one in right)
    return Grade(is_right, float(is_right), {"exact_match": is_right, "f1": f1})
