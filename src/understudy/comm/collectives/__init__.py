"""The collectives, one algorithm per file, and the choice between them.

Which algorithm runs depends on the operation, its size and the layout of roles only: never on who plays them.
"""
