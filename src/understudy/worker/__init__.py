"""The training process's side: the job, its steps, the vote, undo, promotion and rehearsal."""
