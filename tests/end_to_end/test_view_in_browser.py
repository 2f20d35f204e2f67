"""`resilisim view` in a real browser: a run that is being played, two episodes side by side, and no complaint."""

import base64
import hashlib

import pytest

from resilisim.evaluation import evaluate
from resilisim.reporting.view.pages import link
from resilisim.reporting.view.side_by_side import pairs_of
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


PRESSES = """
if (location.pathname === "/episodes" && !sessionStorage.pressed) {
  sessionStorage.pressed = "j";
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
} else if (location.pathname === "/episodes" && sessionStorage.pressed === "j") {
  sessionStorage.pressed = "Escape";
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
}
"""


def test_keys_lead_to_the_next_pair_and_back_to_the_list(played, tmp_path):
    agents = {"a": "nightly", "agent_a": POLICIES[0], "b": "nightly", "agent_b": POLICIES[1], "choice": "all"}
    digest = base64.b64encode(hashlib.sha256(PRESSES.encode()).digest()).decode()
    with serving(played.parent) as server:
        make, visited = server.pages.page, []

        def page(path, query):
            status, made = make(path, query)
            visited.append((path, query.get("of_a")))
            text = made.decode().replace(
                "script-src &#39;sha256-", f"script-src &#39;sha256-{digest}&#39; &#39;sha256-"
            )
            return status, text.replace("</body>", f"<script>{PRESSES}</script></body>").encode()

        run = server.watch.runs["nightly"]
        listed = pairs_of(run, POLICIES[0], run, POLICIES[1], None)
        server.pages.page = page
        first = {"of_a": listed[0].a.number, "of_b": listed[0].b.number}
        seen = visit(server.url + link("episodes", **agents, **first), tmp_path / "profile")
    expected = [("/episodes", str(listed[0].a.number)), ("/episodes", str(listed[1].a.number)), ("/compare", None)]
    assert visited[:3] == expected
    assert "Where they part" in seen.page
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
