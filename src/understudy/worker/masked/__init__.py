"""Steps that commit although replicas are missing: shards, gradients, sums."""
