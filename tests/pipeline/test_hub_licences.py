"""Only known licences are published, and a set never promises more than its rows allow."""

import pytest

from pipeline.errors import UserError
from pipeline.hub.licences import RANKS, check_licence, hub_name, known_licence


@pytest.mark.parametrize("text", ["", "unknown", "other", "proprietary", "cc-by-nd-4.0", "Apache"])
def test_an_unknown_licence_is_refused(text):
    with pytest.raises(UserError, match="trace t1: its licence"):
        check_licence("mit", "t1", text)
    with pytest.raises(UserError, match="licence of the set"):
        known_licence(text)


@pytest.mark.parametrize(
    ("declared", "row", "allowed"),
    [
        ("apache-2.0", "Apache-2.0", True),
        ("apache-2.0", "CC0-1.0", True),
        ("cc-by-4.0", "MIT", True),
        ("apache-2.0", "CC-BY-4.0", False),
        ("cc-by-sa-4.0", "CC-BY-SA-4.0", True),
        ("cc-by-nc-4.0", "CC-BY-SA-4.0", False),
        ("cc-by-nc-4.0", "CC-BY-4.0", True),
        ("apache-2.0", "CC-BY-NC-4.0", False),
        ("gpl-3.0", "GPL-3.0-or-later", True),
    ],
)
def test_a_set_asks_for_at_least_what_its_rows_ask_for(declared, row, allowed):
    if allowed:
        check_licence(declared, "t", row)
    else:
        with pytest.raises(UserError, match="asks for more than the set's"):
            check_licence(declared, "t", row)


def test_names_are_compared_without_case_and_suffix():
    assert hub_name(" GPL-3.0-only ") == "gpl-3.0"
    assert all(name == hub_name(name) for name in RANKS)
