"""Where machines come from: local processes, other computers, a command."""
