"""Licences that data may be published under, and which of them a set may carry given those of its rows."""

from collections.abc import Mapping

from pipeline.errors import UserError

_BY_RANK: tuple[tuple[str, ...], ...] = (
    ("cc0-1.0", "pddl", "unlicense", "wtfpl", "0bsd"),
    (
        "mit",
        "mit-0",
        "apache-2.0",
        "bsd",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsl-1.0",
        "isc",
        "zlib",
        "cdla-permissive-2.0",
    ),
    ("cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "odc-by", "odc-by-1.0"),
    ("cc-by-sa-3.0", "cc-by-sa-4.0", "odbl", "odbl-1.0", "gpl-3.0", "agpl-3.0", "mpl-2.0", "cdla-sharing-1.0"),
    ("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
)
RANKS: Mapping[str, int] = {name: rank for rank, names in enumerate(_BY_RANK) for name in names}
"""How much a licence asks for: 0 nothing, 1 a notice, 2 attribution, 3 the same terms, 4 no commerce. Lower-case SPDX
ids and Hub names. Licences against derivatives are absent: a trace is one."""
SHARE_ALIKE = 3
SPDX_SUFFIXES = ("-only", "-or-later")


def hub_name(license: str) -> str | None:
    """The lower-case name of a known licence, None for any other text (`unknown`, `other`, an empty one)."""
    name = license.strip().lower()
    for suffix in SPDX_SUFFIXES:
        name = name.removesuffix(suffix)
    return name if name in RANKS else None


def known_licence(declared: str) -> str:
    """The Hub's name of a set's licence. Raises UserError where it is not known."""
    name = hub_name(declared)
    if name is None:
        raise UserError(
            f"licence of the set: `{declared}` is not known; name one of {', '.join(sorted(RANKS))} in the card"
        )
    return name


def check_licence(declared: str, trace_id: str, license: str) -> None:
    """Raise UserError unless the set's licence is known and a row's licence is known and allows it."""
    ours, theirs = known_licence(declared), hub_name(license)
    if theirs is None:
        raise UserError(
            f"trace {trace_id}: its licence `{license}` is not known, so it cannot be published; give its source "
            "a SPDX name in the config of `tasks`, or leave the source out"
        )
    if RANKS[theirs] > RANKS[ours] or (RANKS[theirs] == SHARE_ALIKE and theirs != ours):
        raise UserError(
            f"trace {trace_id}: its licence `{license}` asks for more than the set's `{declared}` gives; choose "
            "another licence in the card, or leave the source out"
        )
