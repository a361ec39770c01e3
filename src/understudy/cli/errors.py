"""The error for mistakes that the user can correct."""


class UsageError(Exception):
    """A message for the user in one sentence. The command ends with exit code 2 and no traceback."""
