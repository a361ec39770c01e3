"""Faults on purpose: what can go wrong, to whom, when, and whether the job came through it unharmed."""
