"""Questions on results that scientific papers report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
from resilisim.worlds.records.questions.template import Question, calculated, python, retrieved, single, template
from resilisim.worlds.records.text_collections import TASKS_OF_RESEARCH, Result

_TWO_DECIMALS: Final = "Round to two decimals."
_MANY: Final = 30  # passages among which all of a dataset, or of a method, are
_METHOD: Final = r"\b([A-Z][a-z]+(?:Net|Former|-B|-XL|Mix|RNN))"
_DATASET: Final = r"\b([A-Z][a-z]+-\d\d)\b"
# Keeps what passages report by a metric on what is named (a dataset or a method): scores, and the matches of a pattern.
_REPORTED: Final = """import re
def reported(passages, name, metric, other):
    found = []
    for text in passages:
        scores = re.findall(metric + r" of (\\d+\\.\\d\\d)", text)
        if scores and re.search(r"(?<!\\w)" + name + r"(?!\\w)", text):
            found.append([float(scores[0]), re.findall(other, text)[0]])
    return found
"""


def _result(data: GeneratedData, draws: Draws) -> Result:
    return draws.choice(data.scirex[1])


def _others(data: GeneratedData, result: Result, *fields: str) -> list[Result]:
    """Return all results that agree with one in some fields, itself included."""
    key = [getattr(result, name) for name in fields]
    return [entry for entry in data.scirex[1] if [getattr(entry, name) for name in fields] == key]


def _found(text: str, answer: str | float, keyword: str, pattern: str, digits: int = 0) -> Question:
    return Question(text, answer, (retrieved("Scirex", keyword),), "${found.passages}", pattern, digits)


def _line(*parts: str) -> str:
    """Return the beginning of a pattern for a passage that holds some texts: passages stand in JSON, in quotes."""
    return "".join(rf'(?=[^"]*(?<!\w){re.escape(part)}(?!\w))' for part in parts) + '[^"]*?'


@template("scirex", "easy")
def score(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up a score."""
    result = _result(data, draws)
    text = f"Which {result.metric} does {result.method} reach on the {result.dataset} dataset for {result.task}?"
    pattern = '"' + _line(result.method, result.dataset) + rf"{result.metric} of (\d+\.\d\d)"
    return _found(text, result.score, f"{result.method} {result.dataset} {result.metric}", pattern, 2)


@template("scirex", "easy")
def method(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up which method has a score."""
    result = _result(data, draws)
    if len(_others(data, result, "dataset", "metric", "score")) > 1:
        return None
    text = (
        f"Which method is reported with {_article(result)} {result.metric} of {result.score:.2f} "
        f"on the {result.dataset} dataset?"
    )
    pattern = '"' + _line(result.dataset, f"{result.metric} of {result.score:.2f}") + _METHOD
    return _found(text, result.method, f"{result.dataset} {result.metric} {result.score:.2f}", pattern)


@template("scirex", "easy")
def dataset(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up where a method has a score."""
    result = _result(data, draws)
    if len(_others(data, result, "method", "metric", "score")) > 1:
        return None
    text = f"On which dataset does {result.method} reach {_article(result)} {result.metric} of {result.score:.2f}?"
    pattern = '"' + _line(result.method, f"{result.metric} of {result.score:.2f}") + _DATASET
    return _found(text, result.dataset, f"{result.method} {result.metric} {result.score:.2f}", pattern)


@template("scirex", "easy")
def task(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up what a dataset is for."""
    result = _result(data, draws)
    pattern = '"' + _line(result.dataset) + "(" + "|".join(TASKS_OF_RESEARCH) + ")"
    return _found(f"For which task is the {result.dataset} dataset used?", result.task, result.dataset, pattern)


def _score_call(result: Result, save: str) -> dict[str, object]:
    return retrieved("Scirex", f"{result.method} {result.dataset} {result.metric}", _MANY, save)


@template("scirex", "easy")
def gap_to_perfection(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up a score and calculate with it."""
    result = _result(data, draws)
    program = f"{_REPORTED}print(round(100 - reported(passages, method, metric, dataset)[0][0], 2))"
    calls = (
        _score_call(result, "found"),
        python(
            program, passages="${found.passages}", method=result.method, metric=result.metric, dataset=result.dataset
        ),
    )
    text = (
        f"By how many points does the {result.metric} of {result.method} on the {result.dataset} dataset "
        "fall short of 100?"
    )
    program_fits = len(_others(data, result, "method", "metric")) == 1
    return Question(text, 100 - result.score, calls, "${answer.output}", digits=2) if program_fits else None


@template("scirex", "easy")
def both_metrics(data: GeneratedData, draws: Draws) -> Question | None:
    """Read two scores in one text."""
    results = _others(data, _result(data, draws), "method", "dataset")
    if len(results) != 2 or results[0].score == results[1].score:
        return None
    first, two = results
    program = (
        "import re\n"
        "text = [text for text in passages if re.search(r'(?<!\\w)' + method + r'(?!\\w)', text) and dataset in "
        "text][0]\nscores = [float(score) for score in re.findall(r' of (\\d+\\.\\d\\d)', text)]\n"
        "print(round(abs(scores[0] - scores[1]), 2))"
    )
    calls = (
        retrieved("Scirex", f"{first.method} {first.dataset}"),
        python(program, passages="${found.passages}", method=first.method, dataset=first.dataset),
    )
    text = (
        f"By how much do the {first.metric} and the {two.metric} of {first.method} on the {first.dataset} dataset "
        "differ? Give a positive number."
    )
    return Question(text, abs(first.score - two.score), calls, "${answer.output}", digits=2)


def _article(result: Result) -> str:
    return "an" if result.metric[0] in "aFAN" else "a"


def _on_dataset(data: GeneratedData, draws: Draws, least: int) -> list[Result] | None:
    results = _others(data, _result(data, draws), "dataset", "metric")
    return results if least <= len(results) <= 12 else None


def _dataset_question(
    results: Sequence[Result], text: str, answer: str | float, program: str, digits: int = 0
) -> Question:
    first = results[0]
    calls = (
        retrieved("Scirex", f"{first.dataset} {first.metric}", _MANY),
        python(
            f"{_REPORTED}results = reported(passages, name, metric, other)\n{program}",
            passages="${found.passages}",
            name=first.dataset,
            metric=first.metric,
            other=_METHOD,
        ),
    )
    return Question(text, answer, calls, "${answer.output}", digits=digits)


@template("scirex", "hard")
def best_method(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare all scores on a dataset."""
    results = _on_dataset(data, draws, 3)
    best = single([result.score for result in results], max) if results else None
    if results is None or best is None:
        return None
    text = f"Which method has the highest {results[0].metric} on the {results[0].dataset} dataset?"
    return _dataset_question(results, text, results[best].method, "print(max(results)[1])")


@template("scirex", "hard")
def mean_score(data: GeneratedData, draws: Draws) -> Question | None:
    """Average all scores on a dataset."""
    results = _on_dataset(data, draws, 3)
    if results is None:
        return None
    text = (
        f"What is the mean {results[0].metric} of all methods that report it on the {results[0].dataset} dataset? "
        "Round to two decimals."
    )
    answer = sum(result.score for result in results) / len(results)
    return _dataset_question(results, text, answer, "print(sum(score for score, _ in results) / len(results))", 2)


@template("scirex", "hard")
def spread(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare the best and the worst score on a dataset."""
    results = _on_dataset(data, draws, 3)
    if results is None:
        return None
    scores = [result.score for result in results]
    text = (
        f"By how much do the highest and the lowest {results[0].metric} differ that methods reach on the "
        f"{results[0].dataset} dataset?"
    )
    program = "print(round(max(results)[0] - min(results)[0], 2))"
    return _dataset_question(results, text, max(scores) - min(scores), program, 2)


@template("scirex", "hard")
def difference_of_methods(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare scores of two searches."""
    results = _on_dataset(data, draws, 2)
    if results is None:
        return None
    first, two = draws.shuffled(results)[:2]
    program = (
        f"{_REPORTED}print([score for score, where in reported(passages, method, metric, data) if where == dataset][0])"
    )
    calls = []
    for save, result in (("one", first), ("two", two)):
        calls += [
            retrieved("Scirex", f"{result.method} {result.dataset} {result.metric}", save=save),
            python(
                program,
                f"{save}_score",
                passages=f"${{{save}.passages}}",
                method=result.method,
                metric=result.metric,
                data=_DATASET,
                dataset=result.dataset,
            ),
        ]
    calls.append(calculated("abs(${one_score.output} - ${two_score.output})"))
    text = f"By how much do {first.method} and {two.method} differ in {first.metric} on the {first.dataset} dataset?"
    return Question(text, abs(first.score - two.score), tuple(calls), "${answer.result}", digits=2)


@template("scirex", "hard")
def mean_of_a_method(data: GeneratedData, draws: Draws) -> Question | None:
    """Average the scores of a method on several datasets."""
    results = _others(data, _result(data, draws), "method", "metric")
    if not 2 <= len(results) <= 12:
        return None
    result = results[0]
    calls = (
        retrieved("Scirex", f"{result.method} {result.metric}", _MANY),
        python(
            f"{_REPORTED}scores = [score for score, _ in reported(passages, method, metric, data)]\n"
            "print(sum(scores) / len(scores))",
            passages="${found.passages}",
            method=result.method,
            metric=result.metric,
            data=_DATASET,
        ),
    )
    text = (
        f"What is the mean {result.metric} of {result.method} over all datasets that it is reported on? {_TWO_DECIMALS}"
    )
    return Question(text, sum(r.score for r in results) / len(results), calls, "${answer.output}", digits=2)


@template("scirex", "hard")
def elsewhere(data: GeneratedData, draws: Draws) -> Question | None:
    """Find a method by its score, and its score elsewhere."""
    result = _result(data, draws)
    others = [other for other in _others(data, result, "method") if other.dataset != result.dataset]
    if not others or len(_others(data, result, "dataset", "metric", "score")) > 1:
        return None
    other = draws.choice(others)
    pick = '"' + _line(result.dataset, f"{result.metric} of {result.score:.2f}") + _METHOD
    calls = (
        retrieved("Scirex", f"{result.dataset} {result.metric} {result.score:.2f}"),
        python(
            "import json, re\nprint(re.findall(pattern, json.dumps(passages))[0], end='')",
            "method",
            pattern=pick,
            passages="${found.passages}",
        ),
        retrieved("Scirex", f"${{method.output}} {other.dataset} {other.metric}", save="others"),
    )
    text = (
        f"Take the method that has {_article(result)} {result.metric} of {result.score:.2f} on the {result.dataset} "
        f"dataset. Which {other.metric} does it reach on the {other.dataset} dataset?"
    )
    pattern = '"' + _line(other.method, other.dataset) + rf"{other.metric} of (\d+\.\d\d)"
    return Question(text, other.score, calls, "${others.passages}", pattern, 2)
