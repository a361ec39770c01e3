"""How machines come to be."""
