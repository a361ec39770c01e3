"""One per machine: starts workers, sees them die, heartbeats, relays."""
