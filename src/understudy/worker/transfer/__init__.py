"""State that moves between workers: hand-over, copies in memory, checkpoints."""
