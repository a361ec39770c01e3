"""Go on without a replica, or wait for a standby: one decision, with its reason."""

from __future__ import annotations

import msgspec
import pytest

from understudy.masking.policy import MaskChoice, MaskOptions, choose

READY = MaskOptions(4, 3, ready=True, coming=True, hand_over=0.5, step=2.0)


@pytest.mark.parametrize(
    ("changes", "act", "reason"),
    [
        ({"live": 0}, "recover", "no replica is complete"),
        ({"lost": "shard 3 has no live holder"}, "recover", "shard 3 has no live holder"),
        ({"coming": False, "ready": False}, "mask", "there is no standby"),
        ({"ready": False}, "mask", "no standby is ready"),
        ({}, "recover", "the hand-over takes about 0.5 s, masking would cost 2 s"),
        ({"hand_over": 3.0}, "mask", "masking costs about 2 s, the hand-over would take 3 s"),
        ({"step": 0.0}, "mask", "masking costs about 0 s, the hand-over would take 0.5 s"),
        ({"hand_over": 3.0, "stretch": 2.0}, "recover", "the hand-over takes about 3 s, masking would cost 6 s"),
        ({"reluctant": True, "ready": False}, "recover", "there is a standby"),
        ({"reluctant": True, "ready": False, "coming": False}, "mask", "there is no standby"),
    ],
)
def test_choice(changes: dict[str, object], act: str, reason: str) -> None:
    assert choose(msgspec.structs.replace(READY, **changes)) == MaskChoice(act, reason)  # type: ignore[arg-type]
