from __future__ import annotations

import sys

from . import run

run(int(sys.argv[1]), verbose=True)
