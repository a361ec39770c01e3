"""Run torchft's lighthouse, which decides which replicas train together. It writes its address to a file."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from torchft.coordination import LighthouseServer

parser = argparse.ArgumentParser()
parser.add_argument("--address", type=Path, required=True)
parser.add_argument("--heartbeat", type=int, required=True, help="milliseconds after which a silent replica is lost")
parser.add_argument("--tick", type=int, required=True, help="milliseconds between two checks of the replicas")
parser.add_argument("--join", type=int, required=True, help="milliseconds to wait for replicas that are alive and late")
args = parser.parse_args()

server = LighthouseServer(
    bind="127.0.0.1:0",
    min_replicas=1,
    join_timeout_ms=args.join,
    quorum_tick_ms=args.tick,
    heartbeat_timeout_ms=args.heartbeat,
)
half = args.address.with_suffix(".half")
half.write_text(
    f"http://127.0.0.1:{server.address().rpartition(':')[2]}"
)  # the host's name may resolve to another address
half.replace(args.address)
signal.pause()
