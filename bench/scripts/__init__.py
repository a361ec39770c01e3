"""Training scripts that the benchmarks start: the same training under `understudy run`, torchrun and torchft."""

from __future__ import annotations

from pathlib import Path

OURS = str(Path(__file__).with_name("ours.py"))
PLAIN = str(Path(__file__).with_name("plain.py"))
RESTARTED = str(Path(__file__).with_name("restarted.py"))
TORCHFT = str(Path(__file__).with_name("with_torchft.py"))
LIGHTHOUSE = str(Path(__file__).with_name("lighthouse.py"))
TIMED = str(Path(__file__).with_name("timed.py"))
PACED = str(Path(__file__).with_name("paced.py"))
