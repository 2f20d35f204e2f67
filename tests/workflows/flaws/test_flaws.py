"""The seven flaws on the benchmark's plans: each is what it is called, and its edits tell all that was done."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from flaw_edits import check_edits
from flaw_samples import LIBRARY, METHODS, all_flawed, flawed, outcomes, perturber, planned, similarity

from resilisim.workflows.flaws import (
    DEFAULT_SEVERITY,
    EDIT_KINDS,
    FLAW_METHODS,
    FLAW_TYPES,
    SEVERITIES,
    FlawedWorkflow,
    FlawRefusal,
)
from resilisim.workflows.flaws.methods import METHODS as METHODS_THAT_EXIST
from resilisim.workflows.flaws.model import PlanView, Workshop
from resilisim.workflows.flaws.perturber import flaw_problem

# The drift's place follows from the severity and its tools from the formula; no list of the sample validates twice.
WITHOUT_A_CHOICE = {"progressive_drift", "validation_removal"}


@pytest.mark.parametrize(("flaw", "method"), METHODS)
def test_each_flaw_is_what_it_is_called(flaw, method):
    found = list(all_flawed(flaw, method))
    assert len(found) >= len(planned())
    shop = Workshop(LIBRARY, similarity, 10)
    for task, one in found:
        assert one.workflow.steps != one.original.steps
        assert (one.flaw.type, one.flaw.method) == (flaw, method)
        assert str(one.flaw) == f"{flaw}/{method}/{one.flaw.severity}"
        assert flaw_problem(one, PlanView.of(one.original, task.required_tools, shop)) is None


@pytest.mark.parametrize(("flaw", "method"), METHODS)
def test_edits_tell_exactly_what_was_done(flaw, method):
    for _, one in all_flawed(flaw, method):
        check_edits(one)


def test_names():
    assert len(FLAW_TYPES) == 7
    assert sorted(METHODS_THAT_EXIST) == sorted(method for _, method in METHODS)
    assert len(METHODS_THAT_EXIST) == 14
    assert DEFAULT_SEVERITY in SEVERITIES
    kinds = {edit.what for flaw, method in METHODS for _, one in all_flawed(flaw, method) for edit in one.edits}
    assert kinds == set(EDIT_KINDS)


def test_edits_and_flaws_as_they_stand_in_records():
    _, one = flawed("missing_step", "middle_step_removal", "light")[0]
    mapping = one.flaw_mapping()
    assert list(mapping) == ["type", "method", "severity", "edits"]
    assert any(edit["what"] == "removed" for edit in mapping["edits"])
    for edit in mapping["edits"]:
        assert list(edit) == ["what", "where", "before", "after"]
        assert list(edit["where"]) == ["step", "original_step", "parameter"]
    assert json.loads(json.dumps(mapping)) == mapping


@pytest.mark.parametrize(("flaw", "method"), METHODS)
def test_another_seed_makes_other_choices(flaw, method):
    tried = changed = 0
    for (_, one), (_, other), (_, again) in zip(
        outcomes(flaw, method, "light"),
        outcomes(flaw, method, "light", 1),
        outcomes(flaw, method, "light"),
        strict=True,
    ):
        assert one == again
        if isinstance(one, FlawRefusal):
            assert other == one
            continue
        assert isinstance(other, FlawedWorkflow)
        tried += 1
        changed += one.workflow != other.workflow
    if method in WITHOUT_A_CHOICE:
        assert changed == 0
    else:
        assert changed / tried > 0.4


def sites(one: FlawedWorkflow) -> set[tuple[int | None, str | None]]:
    # Where tools are replaced or removed, what others say of them is changed as a consequence.
    whole = [edit for edit in one.edits if edit.what in ("replaced", "removed")]
    return {(edit.original_step, edit.parameter) for edit in whole or one.edits}


EXTENDING = [
    (flaw, method) for flaw, method in METHODS if method not in ("unnecessary_addition", "unrelated_insertion")
]


@pytest.mark.parametrize(("flaw", "method"), EXTENDING)
def test_a_stronger_flaw_extends_the_weaker_one_of_the_same_seed(flaw, method):
    for severities in (("light", "moderate"), ("moderate", "severe")):
        for (_, weaker), (_, stronger) in zip(
            *(flawed(flaw, method, severity) for severity in severities), strict=True
        ):
            assert sites(weaker) <= sites(stronger)


@pytest.mark.parametrize("method", ["duplication", "unnecessary_addition", "unrelated_insertion"])
def test_useless_steps_are_counted_in_the_turns_that_are_left(method):
    flaw = next(flaw for flaw, of in METHODS if of == method)
    for severity, share in (("light", 0.0), ("moderate", 0.5), ("severe", 1.0)):
        for _, one in flawed(flaw, method, severity):
            spare = 10 - len(one.original.steps)
            least = 1 + SEVERITIES.index(severity)
            assert len(one.workflow.steps) - len(one.original.steps) == max(least, -int(-spare * share // 1))


def test_the_same_in_another_process():
    script = "import sys; sys.path.insert(0, sys.argv[1])\nfrom test_flaws import digest\nprint(digest())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    result = subprocess.run(
        [sys.executable, "-c", script, os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert result.stdout.strip() == digest()


def digest() -> str:
    """Return a hash of the moderate flaws of a few plans, to the last byte."""
    result = hashlib.sha256()
    for task, workflow in planned()[::6]:
        for flaw, method in METHODS:
            one = perturber().perturb(workflow, task.required_tools, flaw, "moderate", method)
            if isinstance(one, FlawedWorkflow):
                result.update(json.dumps([one.workflow.to_mapping(), one.flaw_mapping()]).encode())
            else:
                result.update(str(one).encode())
    return result.hexdigest()


def test_without_a_method_the_seed_draws_one_that_can_do_something():
    for flaw, (first, second) in FLAW_METHODS.items():
        drawn = []
        for task, workflow in planned():
            one = perturber().perturb(workflow, task.required_tools, flaw)
            able = [
                method
                for method in (first, second)
                if isinstance(perturber().perturb(workflow, task.required_tools, flaw, method=method), FlawedWorkflow)
            ]
            if isinstance(one, FlawRefusal):
                assert able == []
                assert "; " in one.reason  # both reasons
            else:
                assert one.flaw.method in able
                same = perturber().perturb(workflow, task.required_tools, flaw, method=one.flaw.method)
                assert one == same
                drawn += [one.flaw.method] * (len(able) == 2)
        assert 0.25 < drawn.count(first) / len(drawn) < 0.75


def test_changing_a_value_in_one_workflow_changes_no_other():
    def useless_parameters():
        task, workflow = planned()[3]
        one = perturber().perturb(
            workflow, task.required_tools, "redundant_operation", "severe", "unnecessary_addition"
        )
        return [step.parameters for step in one.workflow.steps if step not in workflow.steps]

    expected = json.dumps(useless_parameters())
    for parameters in useless_parameters():
        for value in parameters.values():
            if isinstance(value, dict):
                value["spoilt"] = True
        parameters["spoilt"] = True
    assert json.dumps(useless_parameters()) == expected
