"""Understudy: a PyTorch training runtime in which any machine of a running job can be replaced live."""

from importlib.metadata import version

__version__ = version("understudy")

__all__ = ["__version__"]
