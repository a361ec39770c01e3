"""Inputs of a plan: assumptions, incident logs, measured runs."""
