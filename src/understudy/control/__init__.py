"""The controller: a pure state machine, its ledger and its server."""
