"""Decisions about machines, from observations to actions with reasons: slow machines, standbys, drains, moves. Pure."""
