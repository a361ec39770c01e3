"""Understudy's own transport: shared memory within a machine, links between machines."""
