"""A run as a frame in memory: the same rows as in its Parquet tables, taken through Arrow's interface."""

import pytest

from resilisim.datasets import run_frame
from resilisim.datasets.run_tables import export_run
from resilisim.errors import InvalidInputError
from resilisim.evaluation import evaluate

pandas = pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Return the result of a small run."""
    folder = tmp_path_factory.mktemp("frame") / "run"
    return evaluate(["plan-follower", "random"], 4, ["optimal", "flawed"], 2, out=folder, progress=False)


@pytest.mark.parametrize("table", ["episodes", "steps", "failures"])
def test_frames_hold_what_parquet_tables_hold(result, tmp_path, table):
    export_run(result.directory, tmp_path)
    frame = run_frame(result, table)
    stored = parquet.read_table(tmp_path / f"{table}.parquet")
    assert frame.column_names == stored.column_names
    assert frame.num_rows == stored.num_rows
    for name in frame.column_names:
        assert [str(value) for value in frame.column(name).to_pylist()] == [
            str(value) for value in stored.column(name).to_pylist()
        ], name


def test_pandas_takes_a_frame_through_arrow(result):
    frame = pandas.DataFrame.from_arrow(run_frame(result.directory))
    means = frame.groupby(["policy", "prompt_type"])["outcome"].mean()
    for row in result.rows:
        assert means[row.policy, row.prompt_type] == row.success.value


def test_an_unknown_table_is_named(result):
    with pytest.raises(InvalidInputError, match="unknown table 'episode': did you mean 'episodes'"):
        run_frame(result, "episode")


def test_notebooks_show_results_as_tables(result):
    html = result._repr_html_()
    assert html.count("<tr>") + html.count("<tr ") == len(result.rows) + 1
    assert "plan-follower" in html
