"""The rows that flow between stages, and the ids that name them by content."""

from pipeline.records.ids import canonical_json, content_id, normalise_prompt, prompt_id_of
from pipeline.records.types import (
    RECORD_TYPES,
    Record,
    Rejected,
    Report,
    Sample,
    Task,
    Trace,
    Verdict,
    schema_of,
    table_name,
)

__all__ = [
    "RECORD_TYPES",
    "Record",
    "Rejected",
    "Report",
    "Sample",
    "Task",
    "Trace",
    "Verdict",
    "canonical_json",
    "content_id",
    "normalise_prompt",
    "prompt_id_of",
    "schema_of",
    "table_name",
]
