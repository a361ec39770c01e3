"""`bench rehearsal`: the value and the cost of a standby's rehearsal."""
