"""Links that lead out of a folder that somebody brings are not followed: into none that is read, into none written."""

import json

import pytest

from resilisim import evaluate
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import read_manifest, read_records
from resilisim.evaluation.run.store import read_failures
from resilisim.inputs import inside
from resilisim.policies.llm.templates import _own_templates
from resilisim.workflows.templating import load_templates
from resilisim.worlds.pages import hotpotqa_world, loft_world
from resilisim.worlds.pages.hotpotqa_and_loft import read_pages


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0:\n")
    return file


def test_pages_templates_and_corpora(tmp_path, secret):
    folder = tmp_path / "folder"
    folder.mkdir()
    link = "is a link out of its folder"
    (folder / "Root.txt").symlink_to(secret)
    with pytest.raises(InvalidInputError, match=link):
        read_pages(folder)
    question = [{"_id": "1", "question": "Who?", "answer": "root", "context": []}]
    (tmp_path / "questions.json").write_text(json.dumps(question))
    with pytest.raises(InvalidInputError, match=link):
        hotpotqa_world(tmp_path / "questions.json", folder)
    (folder / "dev_queries.jsonl").symlink_to(secret)
    with pytest.raises(InvalidInputError, match=link):
        loft_world(folder)
    (folder / "system.md").symlink_to(secret)
    with pytest.raises(InvalidInputError, match=link):
        _own_templates(folder, {"system": ""})
    (folder / "system.md").unlink()
    (folder / "chain_of_thought.text.md").symlink_to(secret)
    with pytest.raises(InvalidInputError, match=link):
        load_templates(folder)


@pytest.mark.parametrize("name", ["manifest.json", "episodes.jsonl", "failures.jsonl"])
def test_runs(tmp_path, secret, name):
    """A folder that somebody else has made can make no run write into another file, nor a reader show it."""
    out = tmp_path / "run"
    evaluate("plan-follower", tasks=1, out=out)
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(secret)
    read = {"manifest.json": read_manifest}.get(name, read_failures if name == "failures.jsonl" else read_records)
    with pytest.raises(StoreError, match="is a link out of its folder"):
        list(read(out))
    if name != "failures.jsonl":
        with pytest.raises(StoreError, match="is a link out of its folder"):
            evaluate("plan-follower", tasks=1, out=out)
    assert secret.read_text() == "root:x:0:0:\n"


def test_what_belongs_to_a_folder(tmp_path, secret):
    folder = tmp_path / "models--x" / "snapshots" / "1"
    folder.mkdir(parents=True)
    blobs = tmp_path / "models--x" / "blobs"
    blobs.mkdir()
    (blobs / "b").write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/b")  # as the cache of Hugging Face has it
    assert inside(folder, folder / "config.json", "file").read_text() == "{}"
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "inner").mkdir()
    for name, problem in {
        "loop": "cannot be read",
        "inner": "is not an ordinary file",
        "../../../passwd": "is a link out",
    }.items():
        with pytest.raises(InvalidInputError, match=problem):
            inside(folder, folder / name, "file")
    assert inside(folder, folder / "absent", "file") == folder / "absent"
