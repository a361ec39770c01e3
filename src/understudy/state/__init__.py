"""What moves with a role: which tensors, what else, and how both get from one worker to another."""
