"""The check of a script: run it, disturb it, compare the runs bit by bit, and name what was forgotten."""
