"""docs/api.md, from docstrings, routes and argument parsers."""
