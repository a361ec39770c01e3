"""A transport over any of torch's own backends, rebuilt for every generation."""
