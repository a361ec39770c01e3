"""The controller: decides what a job does next, and serves operators and agents."""
