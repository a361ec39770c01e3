"""Connections between workers: handshake, streams, channels, messages between pairs."""
