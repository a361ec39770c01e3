"""Published figures and assumptions, to compare with. Data only."""

from __future__ import annotations

import msgspec

from understudy.planning.setting import HOUR


class Published(msgspec.Struct, frozen=True):
    ttt_ratio: float
    """Time to train, in times of the same steps without any failure."""
    availability: float


SPARE = "SPARe, ICML 2026, arXiv 2603.00357"

SPARE_STEPS = 10_000
"""Simulation parameters of the authors."""
SPARE_COMPUTE = 64.0
"""Seconds of one shard. Simulation parameters of the authors."""
SPARE_JITTER = 0.05
"""Standard deviation of a computation, as a share of it. Simulation parameters of the authors."""
SPARE_SYNC_PER_GROUP = 0.01
"""Seconds of the all-reduce per group: 2, 6 and 10 s for 200, 600 and 1,000. Simulation parameters of the authors."""
SPARE_SAVE = 59.0
"""Seconds of a checkpoint. Simulation parameters of the authors; 60 in the text."""
SPARE_RESTART = 3600.0
"""Seconds of a restart. Simulation parameters of the authors."""
SPARE_SHRINK = 0.1
"""Seconds to go on without a group. Simulation parameters of the authors."""
SPARE_SHAPE = 0.78
"""Of the Weibull distribution of a group's life. Simulation parameters of the authors."""
SPARE_SYSTEM_MTBF = 300.0
"""Seconds between two failures anywhere; a group's mean life is N times that. Simulation parameters of the authors."""

SPARE_BEST_R = {200: 9, 600: 8, 1000: 9}
"""SPARe's results: the r with which each N does best."""

SPARE_TABLE: dict[tuple[str, int, int], Published] = {
    ("spare", 200, 9): Published(2.92, 0.870),
    ("spare", 600, 8): Published(2.49, 0.939),
    ("spare", 1000, 9): Published(2.34, 0.965),
    ("replication", 200, 3): Published(6.07, 0.617),
    ("replication", 600, 3): Published(4.27, 0.799),
    ("replication", 1000, 3): Published(3.88, 0.844),
}
"""SPARe's results, Weibull failures: by strategy, N and r."""

TRAINMOVER = "TrainMover, OSDI 2026, arXiv 2412.12636"

MTTF = {1_024: 7.9 * HOUR, 8_192: 3.0 * HOUR, 16_384: 1.8 * HOUR, 131_072: 14 / 60 * HOUR}
"""Seconds between two interruptions of a job on so many GPUs: Meta, as TrainMover's projection takes it."""
EXPECTED_TO_UNEXPECTED = 1 / 8.9
"""TrainMover's projection."""
INFRASTRUCTURE = 120.0
"""Seconds per interruption whatever the system. TrainMover's projection."""
EXPECTED_DOWNTIME = 16.6
"""Seconds at 1,024 GPUs. TrainMover's measurements."""
UNEXPECTED_DOWNTIME = 21.1
"""Seconds at 1,024 GPUs, with a standby. TrainMover's measurements."""
COLD_DOWNTIME = 221.0
"""Seconds without state from a peer, set-up in advance and warm-up. TrainMover's breakdown, 5.12T MoE."""
PARCAE_FEWER = 21.0
"""Seconds for one machine less at 32 GPUs. TrainMover's measurements of Parcae."""
PARCAE_MORE = 200.0
"""Seconds for one machine more at 32 GPUs, at least. TrainMover's measurements of Parcae."""
RESTART_AT_32 = 80.0
"""Seconds of a restart of Megatron-LM at 32 GPUs. TrainMover's measurements."""
RESTART_AT_1024 = 300.0
"""Seconds of a restart of Megatron-LM at 1,024 GPUs. TrainMover's measurements."""

PROJECTED: dict[tuple[str, int], float] = {
    ("no standby", 8_192): -0.359,
    ("no standby", 65_536): -0.55,
    ("no standby", 131_072): -0.55,
    ("parcae", 8_192): -0.828,
    ("parcae", 131_072): -0.88,
}
"""TrainMover's projection: wasted GPU-hours with standbys, against the same without and against Parcae."""
PROJECTED_SAVED_64K = 1.4e6
"""GPU-hours a week at 65,536 GPUs. TrainMover's projection; against what is not said."""
