"""Data by index: a micro-shard of a step has the same samples on every replica that computes it."""

from .determinism import check
from .local import Local, Report
from .mapdata import MapData
from .sampler import DataError, MicroShard, Sampler, partition
from .shards import cut
from .tokens import Tokens

__all__ = ["DataError", "Local", "MapData", "MicroShard", "Report", "Sampler", "Tokens", "check", "cut", "partition"]
