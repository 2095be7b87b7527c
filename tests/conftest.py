"""Tests assert behaviour, never a time: hypothesis has no deadline, and draws the same examples every run."""

from hypothesis import settings

settings.register_profile("warmstart", deadline=None, derandomize=True)
settings.load_profile("warmstart")
