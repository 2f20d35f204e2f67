"""What is said about a plan as a whole."""

from __future__ import annotations

from resilisim.workflows import Step
from resilisim.workflows.model import mean_semantic_match, share_chosen_by


def test_the_mean_match_is_over_the_steps_that_have_one():
    steps = [Step("a", semantic_match=0.25), Step("b"), Step("c", semantic_match=0.75)]
    assert mean_semantic_match(steps) == 0.5
    assert mean_semantic_match([Step("a")]) is None
    assert mean_semantic_match([]) is None


def test_shares_are_of_all_steps():
    steps = [Step("a"), Step("b", chosen_by="policy"), Step("c"), Step("d")]
    assert (share_chosen_by(steps, "semantics"), share_chosen_by(steps, "policy")) == (0.75, 0.25)
    assert share_chosen_by([], "policy") is None
