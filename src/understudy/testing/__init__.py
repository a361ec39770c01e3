"""For tests, ours and those of users: the simulated world. Production code never imports it."""
