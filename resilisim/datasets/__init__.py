"""Datasets: records for training and evaluation, written as folders that others load.

What the records of a dataset are is a spec: `prompts.PromptSpec`, `conversations.ConversationSpec`,
`preferences.PreferenceSpec`, or one of your own (`SourceSpec`).
"""

from resilisim.datasets.export import ExportInterrupted, ExportResult, export_dataset
from resilisim.datasets.folder import Verification, read_records, verify_dataset
from resilisim.datasets.schema import (
    Column,
    Record,
    RecordSchema,
    RecordSource,
    SourceSpec,
    check_record,
    describe,
    to_arrow,
)

__all__ = [
    "Column",
    "ExportInterrupted",
    "ExportResult",
    "Record",
    "RecordSchema",
    "RecordSource",
    "SourceSpec",
    "Verification",
    "check_record",
    "describe",
    "export_dataset",
    "read_records",
    "to_arrow",
    "verify_dataset",
]
