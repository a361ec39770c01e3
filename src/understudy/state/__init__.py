"""What moves with a role: its tensors and other values, and how they get to another worker or to a disk."""
