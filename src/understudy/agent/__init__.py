"""One agent per machine: starts workers, sees them die, reports, relays."""
