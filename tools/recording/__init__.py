"""The animated picture of the README: a session in real processes, recorded and drawn."""
