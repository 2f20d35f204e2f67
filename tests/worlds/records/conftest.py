"""A small world of records, made once for all tests of a process."""

import pytest

from resilisim.worlds.records.contents import GeneratedData, Recipe
from resilisim.worlds.records.database import QueryLimits

SMALL = Recipe(
    seed=3, questions=7, flights=9_000, coffee=1_000, airbnb=2_000, yelp=2_000, agenda=2_000, scirex=300, papers=400
)


@pytest.fixture(scope="session")
def data():
    return GeneratedData(SMALL)


@pytest.fixture(scope="session")
def records(data, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESILISIM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        records = data.records(limits=QueryLimits(seconds=30.0, memory_mib=200))
        records.database.query("SELECT 1")
        yield records
    records.database.close()


@pytest.fixture(scope="session")
def impatient(records, data):
    """The same tables, with little time for a query."""
    impatient = data.records(limits=QueryLimits(seconds=0.3, memory_mib=200))
    yield impatient.database
    impatient.database.close()
