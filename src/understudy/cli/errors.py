"""What a command raises when the person who typed it can put it right."""


class UsageError(Exception):
    """One sentence for the user; the command ends with exit code 2 and no traceback."""
