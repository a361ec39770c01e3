"""Faults on purpose: which faults there are, which come when, and whether the job came through them unharmed."""
