"""torchft's lighthouse: who is alive, and who trains together. Its address goes to the file that is named."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from torchft.coordination import LighthouseServer

parser = argparse.ArgumentParser()
parser.add_argument("--address", type=Path, required=True)
parser.add_argument("--heartbeat", type=int, required=True, help="milliseconds after which a silent replica is gone")
parser.add_argument("--tick", type=int, required=True, help="milliseconds between two looks at who is there")
parser.add_argument("--join", type=int, required=True, help="milliseconds to wait for who lives and is not there yet")
args = parser.parse_args()

server = LighthouseServer(
    bind="127.0.0.1:0",
    min_replicas=1,
    join_timeout_ms=args.join,
    quorum_tick_ms=args.tick,
    heartbeat_timeout_ms=args.heartbeat,
)
half = args.address.with_suffix(".half")
half.write_text(f"http://127.0.0.1:{server.address().rpartition(':')[2]}")  # the host's name may lead elsewhere
half.replace(args.address)
signal.pause()
