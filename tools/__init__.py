"""Programs that make what is committed: the reference, the recording of the README."""
