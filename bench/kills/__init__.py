"""Benchmarks that kill: the jobs that lose a worker or a machine, the kill, and its cost."""
