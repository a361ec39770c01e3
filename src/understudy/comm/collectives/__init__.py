"""Collectives: `ring` and `tree` are the algorithms between machines; `reducing` and `moving` choose between them.

The choice depends on the operation, its size and the layout of roles only, never on the workers that have the roles.
"""
