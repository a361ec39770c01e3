"""The controller's decisions: pure functions over the state of a job."""
