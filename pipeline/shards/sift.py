"""Write what a stage keeps and what it rejects in one pass, counted: records in = kept + rejected."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import UserError
from pipeline.records import Record, Rejected, Report, schema_of, table_name
from pipeline.shards.table import TableWriter, row_of


@dataclass(slots=True)
class Sifted:
    """How many records were kept, and how many rejected for which reason."""

    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def rejected(self) -> int:
        """All rejected records."""
        return self.reasons.total()

    @property
    def read(self) -> int:
        """All records that came in."""
        return self.kept + self.rejected

    def report(self) -> Report:
        """`rejected` and one `rejected_<reason>` a reason, by name."""
        return {"rejected": self.rejected, **{f"rejected_{name}": self.reasons[name] for name in sorted(self.reasons)}}


def write_sifted(output: Path, kept_type: type[Record], records: Iterable[Record], max_rejected: float = 1.0) -> Sifted:
    """Write records of `kept_type` to their table and `Rejected` ones to `rejected/`, as they come.

    Raises UserError when more than the fraction `max_rejected` was rejected.
    """
    counts = Sifted()
    with (
        TableWriter(output / table_name(kept_type), table_name(kept_type), schema_of(kept_type)) as kept,
        TableWriter(output / table_name(Rejected), table_name(Rejected), schema_of(Rejected)) as rejected,
    ):
        for record in records:
            if isinstance(record, Rejected):
                rejected.write(row_of(record))
                counts.reasons[record.reason] += 1
            else:
                kept.write(row_of(record))
                counts.kept += 1
    if counts.rejected > max_rejected * counts.read:
        reasons = ", ".join(f"{name} {count}" for name, count in counts.reasons.most_common())
        raise UserError(
            f"{counts.rejected} of {counts.read} records were rejected ({reasons}), more than max_rejected: "
            f"{max_rejected}; read them in {output / table_name(Rejected)}, mend the input or raise max_rejected"
        )
    return counts
