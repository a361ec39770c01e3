"""SimGrid as a third engine: slow, of other people's making, and so a check of the other two on small cases."""
