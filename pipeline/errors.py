"""The error model, three kinds and no hierarchy.

- `UserError`: something the user can mend (a config key, a missing file, a budget). Printed without a
  traceback, exit code 1. The message names where, what was found, the rule, and the remedy.
- A bad *record* is no exception: it becomes a `Rejected` row with a reason.
- Everything else is a defect and propagates with its traceback.
"""


class UserError(Exception):
    """A problem the user can mend, told in one screen without a traceback."""
