"""What a set of records is: everything that decides its bytes, and nothing of when and where it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from resilisim.datasets.schema import RecordSchema
from resilisim.datasets.shards import Format
from resilisim.datasets.sources import SourceSpec
from resilisim.evaluation.run.plan import hash_tasks
from resilisim.provenance import canonical_json, content_hash, package_versions
from resilisim.tasks.benchmark import benchmark_identity
from resilisim.tasks.model import SPLITS, Task, split_of
from resilisim.tool_library.library import ToolLibrary

DATASET_SCHEMA = "resilisim-dataset-1"


def make_manifest(
    spec: SourceSpec,
    tasks: Sequence[Task],
    schema: RecordSchema,
    library: ToolLibrary,
    file_format: Format,
    **layout: Any,
) -> dict[str, Any]:
    """Return the manifest of the records of some tasks.

    Args:
        spec: Where the records come from.
        tasks: In the order in which their records stand.
        schema: What each record looks like.
        library: The tool library.
        file_format: "jsonl" or "parquet".
        **layout: Further arguments that decide bytes, as JSON values.

    Returns:
        A mapping with the keys schema, hash (of the arguments), arguments, versions (of the packages that write the
        bytes), records (the schema of the records), tasks_per_split.
    """
    given = {
        "benchmark": benchmark_identity(),
        "format": file_format,
        "kind": spec.kind,
        "library": library.content_hash,
        "source": spec.arguments(),
        "tasks": {"count": len(tasks), "sha256": hash_tasks(tasks)},
        **layout,
    }
    arguments = json.loads(canonical_json(given))  # tuples become lists, as they come back from a file
    splits = [split_of(task.required_tools) for task in tasks]
    return {
        "schema": DATASET_SCHEMA,
        "hash": content_hash(arguments),
        "arguments": arguments,
        "versions": package_versions(("resilisim", "pyarrow") if file_format == "parquet" else ("resilisim",)),
        "records": schema.to_mapping(),
        "tasks_per_split": {split: splits.count(split) for split in SPLITS},
    }


def identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a manifest that decide the bytes."""
    return {"arguments": manifest["arguments"], "versions": manifest.get("versions")}
