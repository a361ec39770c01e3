"""For all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)  # tests have time limits of their own
settings.load_profile("shared machine")
