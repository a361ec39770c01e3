"""Masking as pure functions: who holds which shards, who computes them while replicas are missing, what is at risk."""
