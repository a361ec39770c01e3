"""Whether a script survives replacement: run it, disturb it, compare, and name what was forgotten."""
