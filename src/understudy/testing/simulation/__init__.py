"""The real worker runtime and the real controller under one seeded clock, scheduler and network.

A simulated job has the production code of the worker (job, runtime, protocol, transfers, archive) and of the controller
(director, ledger, sessions, steward). Clock, threads, fabric, sockets, disks and processes are simulated, and so is the
agent. Delays, broken connections, crashes and all else that goes wrong follow from the seed.

    python -m understudy.testing.simulation SEED            simulates one seed and prints its story
    python -m understudy.testing.simulation --seeds 0:20000
"""

from __future__ import annotations

from .job import SimJob, simulate_seed
from .setting import Setting, setting_of
from .verdicts import Rule, RuleBroken

__all__ = ["Rule", "RuleBroken", "Setting", "SimJob", "setting_of", "simulate_seed"]
