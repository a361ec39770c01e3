"""A role's state on disk, written beside training by torch.distributed.checkpoint.

    DIR/step-00000120/role-3/…      one role's part; nobody has to meet anybody to write it
    DIR/step-00000120/role-3/done   it is complete

A checkpoint counts when all roles' parts are complete; the last two that count are kept.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from .errors import StateError
from .grow import grow
from .inventory import Inventory, Slot
from .tracked import Tracked

KEPT = 2
_REST = "the rest"


class Note(msgspec.Struct, frozen=True):
    """What is in a role's part."""

    step: int
    slots: tuple[Slot, ...]


def place(folder: Path, step: int, role: int) -> Path:
    return folder / f"step-{step:08}" / f"role-{role}"


def complete(folder: Path, roles: int) -> list[int]:
    """Steps whose checkpoints count, the latest last."""
    found = []
    for entry in folder.glob("step-*"):
        match = re.fullmatch(r"step-(\d+)", entry.name)
        if match and all((entry / f"role-{role}" / "done").exists() for role in range(roles)):
            found.append(int(match[1]))
    return sorted(found)


class Saver:
    """Writes one role's parts, one at a time, in a thread. What is written is a copy: training may go on at once."""

    def __init__(
        self,
        folder: Path,
        role: int,
        roles: int,
        complain: Callable[[str], None],
        saved: Callable[[int, int], None] = lambda role, step: None,
    ) -> None:
        self._folder, self._role, self._roles, self._complain, self._saved = folder, role, roles, complain, saved
        self._thread: threading.Thread | None = None

    def save(self, step: int, inventory: Inventory, others: Sequence[int] = ()) -> None:
        """The state as it is now, also as the part of other roles that hold the same. Waits for the save before, if
        that still runs."""
        self.wait()
        values = {
            slot.name: t.detach().cpu().clone() for slot, t in zip(inventory.slots, inventory.tensors, strict=True)
        }
        values[_REST] = torch.frombuffer(bytearray(inventory.rest()), dtype=torch.uint8)
        note = Note(step, inventory.slots)
        self._thread = threading.Thread(target=self._write, args=(note, values, others), name="understudy checkpoint")
        self._thread.start()

    def _write(self, note: Note, values: dict[str, torch.Tensor], others: Sequence[int]) -> None:
        from torch.distributed.checkpoint.state_dict_saver import save

        target = place(self._folder, note.step, self._role)
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            save(values, checkpoint_id=target, no_dist=True)
            (target / "note.json").write_bytes(msgspec.json.encode(note))
            for role in others:
                copied = place(self._folder, note.step, role)
                shutil.rmtree(copied, ignore_errors=True)
                shutil.copytree(target, copied, copy_function=os.link)
                (copied / "done").touch()
                self._saved(role, note.step)
            (target / "done").touch()
            self._saved(self._role, note.step)
            self._prune()
        except Exception as error:
            self._complain(f"the checkpoint of step {note.step} could not be written to {target}: {error}")

    def _prune(self) -> None:
        """Remove this role's parts of what is older than the checkpoints that are kept."""
        counting = complete(self._folder, self._roles)
        if len(counting) < KEPT:
            return
        oldest = place(self._folder, counting[-KEPT], self._role).parent.name
        for old in [entry for entry in self._folder.glob("step-*") if entry.name < oldest]:
            shutil.rmtree(old / f"role-{self._role}", ignore_errors=True)
            with suppress(OSError):  # others still have theirs
                old.rmdir()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


def load(folder: Path, step: int, role: int, tracked: Tracked) -> None:
    """Make what is tracked as it was when the checkpoint was written."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_values

    source = place(folder, step, role)
    try:
        note = msgspec.json.decode((source / "note.json").read_bytes(), type=Note)
        inventory = grow(tracked, note.slots)
        values = dict(zip((slot.name for slot in note.slots), inventory.tensors, strict=True))
        size = FileSystemReader(source).read_metadata().state_dict_metadata[_REST].size  # type: ignore[union-attr]
        rest = torch.empty(size, dtype=torch.uint8)
        with torch.no_grad():
            load_values({**values, _REST: rest}, checkpoint_id=source, no_dist=True)
        inventory.restore_rest(rest.numpy().tobytes())
    except (OSError, msgspec.MsgspecError, KeyError, AttributeError) as error:
        raise StateError(f"the checkpoint in {source} cannot be read: {error}; move it away to start anew") from None
