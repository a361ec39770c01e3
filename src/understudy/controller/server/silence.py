"""Whose silence means that they are gone, and whose that the listener is cut off."""

from __future__ import annotations

from collections.abc import Mapping


def quiet(heard: Mapping[str, float], now: float) -> float:
    """For how long nobody was heard. A machine that is alone can only be judged by itself: 0."""
    return now - max(heard.values()) if len(heard) > 1 else 0.0


def gone(heard: Mapping[str, float], now: float, heartbeat: float, patience: float) -> list[str]:
    """Those who were silent for too long while others were not. Where nobody is heard it is the controller that hears
    nothing: there is nobody it could give an order to, and training does not need it; only after `patience` all are
    gone."""
    if heartbeat / 2 < quiet(heard, now) < patience:
        return []
    return [name for name, at in heard.items() if now - at > heartbeat]
