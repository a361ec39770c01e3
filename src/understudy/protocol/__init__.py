"""The vocabulary between processes: messages, rosters, the mesh, the vote, sessions. No torch, no I/O."""
