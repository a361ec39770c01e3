"""Whether a script and a job survive: the check of a script, chaos, and what must hold afterwards."""
