"""Datasets: records for training and evaluation, written as folders that others load.

What the records of a dataset are is a spec: `prompts.PromptSpec`, `conversations.ConversationSpec`,
`preferences.PreferenceSpec`, or one of your own (`SourceSpec`).
"""

from resilisim.datasets.dataset_folder import read_records, verify_dataset
from resilisim.datasets.export import export_dataset
from resilisim.datasets.run_tables import run_frame
from resilisim.datasets.schema import Column, Record, RecordSchema, RecordSource, SourceSpec

__all__ = [
    "Column",
    "Record",
    "RecordSchema",
    "RecordSource",
    "SourceSpec",
    "export_dataset",
    "read_records",
    "run_frame",
    "verify_dataset",
]
