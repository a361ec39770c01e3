"""A role's state on disk, written beside training by torch.distributed.checkpoint.

    DIR/step-00000120/role-3/…      one role's part, written without a word to the other roles
    DIR/step-00000120/role-3/done   the part is complete

A checkpoint is complete when the parts of all roles are; the last two complete ones are kept.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from understudy.device.cpu import HOST, local_device

from .errors import StateError
from .inventory import Inventory, grow
from .kinds import Tracked
from .memory import Slot

KEPT = 2
_REST = "the rest"


class CheckpointWriter(Protocol):
    """Writes one role's parts of checkpoints, one at a time, beside training."""

    @property
    def busy(self) -> bool:
        """Whether a part is being written."""

    def save(self, step: int, inventory: Inventory, others: Sequence[int] = ()) -> None:
        """Begin to write the state as it is now, also as the part of other roles that hold the same. Waits for the part
        before, if that is still being written."""

    def wait(self) -> None:
        """Wait until no part is being written."""


class CheckpointStore(Protocol):
    """The checkpoints of a job, as its workers use them."""

    def latest(self) -> int:
        """The step of the latest complete checkpoint; 0: there is none."""

    def load(self, step: int, role: int, tracked: Tracked) -> None:
        """Set all tracked state to a role's part of a checkpoint. Raises StateError if that cannot be read."""

    def writer(self, role: int, saved: Callable[[int, int], None]) -> CheckpointWriter:
        """A writer of this role's parts. `saved` is called with the (role, step) of each part that is complete."""


class Note(msgspec.Struct, frozen=True):
    """The description of a role's part."""

    step: int
    slots: tuple[Slot, ...]


class CheckpointFolder:
    """Checkpoints in a folder that all workers share. `complain` gets a sentence for each part that cannot be written;
    training goes on without that part."""

    def __init__(self, folder: Path, roles: int, complain: Callable[[str], None]) -> None:
        self.folder, self._roles, self.complain = folder, roles, complain

    def part(self, step: int, role: int) -> Path:
        return self.folder / f"step-{step:08}" / f"role-{role}"

    def complete(self) -> list[int]:
        """The steps of the complete checkpoints, the latest last."""
        found = []
        for entry in self.folder.glob("step-*"):
            match = re.fullmatch(r"step-(\d+)", entry.name)
            if match and all((entry / f"role-{role}" / "done").exists() for role in range(self._roles)):
                found.append(int(match[1]))
        return sorted(found)

    def latest(self) -> int:
        return max(self.complete(), default=0)

    def load(self, step: int, role: int, tracked: Tracked) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load as load_values

        source = self.part(step, role)
        try:
            note = msgspec.json.decode((source / "note.json").read_bytes(), type=Note)
            inventory = grow(tracked, note.slots)
            values = dict(zip((slot.name for slot in note.slots), inventory.tensors, strict=True))
            size = FileSystemReader(source).read_metadata().state_dict_metadata[_REST].size  # type: ignore[union-attr]
            rest = HOST.empty(size, torch.uint8)
            with torch.no_grad():
                load_values({**values, _REST: rest}, checkpoint_id=source, no_dist=True)
            inventory.restore_rest(rest.numpy().tobytes())
        except (OSError, msgspec.MsgspecError, KeyError, AttributeError) as error:
            raise StateError(
                f"the checkpoint in {source} cannot be read: {error}; move it away to start anew"
            ) from None

    def writer(self, role: int, saved: Callable[[int, int], None] = lambda role, step: None) -> FolderWriter:
        return FolderWriter(self, role, saved)

    def prune(self, role: int) -> None:
        """Remove a role's parts of checkpoints that are older than the kept ones."""
        complete = self.complete()
        if len(complete) < KEPT:
            return
        oldest = self.part(complete[-KEPT], role).parent.name
        for old in [entry for entry in self.folder.glob("step-*") if entry.name < oldest]:
            shutil.rmtree(old / f"role-{role}", ignore_errors=True)
            with suppress(OSError):  # other roles still have their parts
                old.rmdir()


class FolderWriter:
    """Writes one role's parts into a folder, in a thread, from a copy: training may go on at once."""

    def __init__(self, store: CheckpointFolder, role: int, saved: Callable[[int, int], None]) -> None:
        self._store, self._role, self._saved = store, role, saved
        self._thread: threading.Thread | None = None

    def save(self, step: int, inventory: Inventory, others: Sequence[int] = ()) -> None:
        self.wait()
        values = {
            slot.name: local_device().host_empty(tensor.shape, tensor.dtype).copy_(tensor)
            for slot, tensor in zip(inventory.slots, inventory.tensors, strict=True)
        }
        values[_REST] = torch.frombuffer(bytearray(inventory.rest()), dtype=torch.uint8)
        note = Note(step, inventory.slots)
        self._thread = threading.Thread(target=self._write, args=(note, values, others), name="understudy checkpoint")
        self._thread.start()

    def _write(self, note: Note, values: dict[str, torch.Tensor], others: Sequence[int]) -> None:
        from torch.distributed.checkpoint.state_dict_saver import save

        target = self._store.part(note.step, self._role)
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            save(values, checkpoint_id=target, no_dist=True)
            (target / "note.json").write_bytes(msgspec.json.encode(note))
            for role in others:
                copied = self._store.part(note.step, role)
                shutil.rmtree(copied, ignore_errors=True)
                shutil.copytree(target, copied, copy_function=os.link)
                (copied / "done").touch()
                self._saved(role, note.step)
            (target / "done").touch()
            self._saved(self._role, note.step)
            self._store.prune(self._role)
        except Exception as error:
            self._store.complain(f"the checkpoint of step {note.step} could not be written to {target}: {error}")

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
