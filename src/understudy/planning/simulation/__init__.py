"""Simulators of a job that loses machines."""
