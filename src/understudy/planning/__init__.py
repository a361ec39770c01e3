"""What resilience costs and buys: failure models, strategies, closed forms, simulation and planning. Pure."""
