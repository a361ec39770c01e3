"""Messages of a role to itself, and their end with the generation."""

from __future__ import annotations

import torch

from understudy.comm.faults import Fault, Poison
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.own_messages import OwnMessages


def test_messages_are_paired_by_tag_in_their_order() -> None:
    own, poison = OwnMessages(), Poison()
    early = Receive(0, 5, torch.zeros(1))
    own.post(early, poison)
    for number in (1.0, 2.0):
        own.post(Send(0, 4, torch.tensor([number])), poison)
    assert not early.done.is_set()
    got = [Receive(0, 4, torch.zeros(1)) for _ in range(2)]
    for job in got:
        own.post(job, poison)
    own.post(Send(0, 5, torch.tensor([3.0])), poison)
    assert [job.tensor.item() for job in (*got, early)] == [1.0, 2.0, 3.0]
    assert all(job.done.is_set() for job in (*got, early))


def test_what_was_sent_may_change_afterwards() -> None:
    own, value, got = OwnMessages(), torch.ones(2), Receive(0, 0, torch.zeros(2))
    own.post(Send(0, 0, value), None)
    value.zero_()
    own.post(got, None)
    assert got.tensor.tolist() == [1.0, 1.0]


def test_a_receive_ends_with_its_generation() -> None:
    own, first, second = OwnMessages(), Poison(), Poison()
    waiting = Receive(0, 0, torch.zeros(1))
    own.post(waiting, first)
    first.set(Fault("interrupt", "a test"))
    assert waiting.done.is_set()
    late = Receive(0, 1, torch.zeros(1))
    own.post(late, first)
    assert late.done.is_set()
    own.post(Send(0, 0, torch.ones(1)), first)
    fresh = Receive(0, 0, torch.zeros(1))
    own.post(fresh, second)
    assert not fresh.done.is_set()  # what was sent in the former generation is gone
