"""`resilisim view` in a real browser: a run that is being played, two episodes side by side, and no complaint."""

import pytest

from resilisim.evaluation import evaluate
from resilisim.reporting.view.pages import link
from tests.end_to_end.chromium import find_chromium, visit
from tests.reporting.test_view import serving

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium here: install one, or name its binary in CHROMIUM"
)
POLICIES = ["plan-follower", "repairing-follower"]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return the folder of a run."""
    folder = tmp_path_factory.mktemp("played") / "nightly"
    evaluate(POLICIES, 6, ["flawed"], 2, out=folder, progress=False)
    return folder


def test_a_run_that_is_being_played_moves_on_the_page(played, tmp_path):
    below = tmp_path / "runs"
    growing = below / "nightly"
    growing.mkdir(parents=True)
    (growing / "manifest.json").write_bytes((played / "manifest.json").read_bytes())
    lines = (played / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (growing / "episodes.jsonl").write_bytes(b"".join(lines[:5]))
    with serving(below) as server:
        make, made = server.pages.page, []

        def page(path, query):
            made.append(make(path, query))
            (growing / "episodes.jsonl").write_bytes(b"".join(lines))
            server.watch.update()
            return made[-1]

        server.pages.page = page
        seen = visit(server.url, tmp_path / "profile")
    assert b"5 of 24, under way" in made[0][1]
    assert len(made) > 1
    assert "24 of 24, finished" in seen.page
    assert "5 of 24" not in seen.page
    assert seen.messages == []


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_of_a_comparison_complain_of_nothing(played, tmp_path, width):
    agents = {"a": "nightly", "agent_a": POLICIES[0], "b": "nightly", "agent_b": POLICIES[1], "choice": "all"}
    with serving(played.parent) as server:
        for address in (
            link("compare", **agents),
            link("episodes", **agents, of_a=0, of_b=2),
            link("report", run="nightly"),
            link("optimum", run="nightly", episode=0, turn=1),
        ):
            seen = visit(server.url + address, tmp_path / "profile", width=width)
            assert seen.messages == []
            assert "<h1>This cannot be shown" not in seen.page
