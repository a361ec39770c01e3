"""The real worker runtime and the real controller under one seeded clock, scheduler and network."""
