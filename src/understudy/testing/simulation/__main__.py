from __future__ import annotations

import sys

from .job import simulate_seed

simulate_seed(int(sys.argv[1]), verbose=True)
