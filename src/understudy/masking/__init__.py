"""Masking as pure functions: which replicas hold a shard, which one computes it, and which failure would lose it."""
