"""What differs between a CPU and an accelerator: memory, streams, random numbers."""
