"""Published results, with the code that reproduces them."""
