"""The interface between a worker's runtime and the other workers of its job.

`network.NetworkFabric` moves bytes over sockets and shared memory. The simulation runs the same runtime over a fabric
of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from understudy.protocol.roster import Roster, WorkerAddress

from .endpoint import Endpoint
from .faults import Fault
from .links.link import Link
from .recording import Recorder
from .sandbox import Sandbox


class Fabric(Protocol):
    """One worker's generation, groups and links. All methods may be called from any thread.

    A worker that rehearses first calls `assume`. Then, for each roster: `prepare` in the background while operations
    run, and `switch` at a step boundary.
    """

    @property
    def worker(self) -> WorkerAddress:
        """The address under which rosters list this worker."""

    # -- generations -----------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The current generation; 0 before the first switch and after `withdraw`."""

    @property
    def roster(self) -> Roster | None:
        """The roster of the current generation."""

    @property
    def prepared(self) -> int:
        """The highest generation to which this worker can switch now: what it says in the vote."""

    @property
    def fault(self) -> Fault | None:
        """Why results of the current generation are undefined; None as long as they are not."""

    def prepare(self, roster: Roster) -> Future[None]:
        """Phase one: open the links that `roster` needs and this worker does not have yet, while operations run.

        The future fails with PrepareFailed; the current generation continues then. Raises RosterError for a generation
        that is not new, or a roster in which this worker has another role or another address."""

    def abandon(self, generation: int) -> None:
        """Give up a generation that is being prepared or has been. Returns at once."""

    def switch(self, generation: int) -> None:
        """Phase two: enter a prepared generation. Takes microseconds. Call at a step boundary: no operation may run.

        Raises SwitchRefused if the generation is not prepared or was prepared to follow another one."""

    def withdraw(self) -> None:
        """Leave the current generation but keep the role, until a later one is entered. No operation may run."""

    def interrupt(self, reason: str, who: str = "") -> None:
        """Poison the current generation on all workers: operations that run or come later return at once, with
        undefined results, and `fault` has the reason. `who` is the uid of the worker at fault, if one is."""

    # -- groups ----------------------------------------------------------------------------------------------------

    def endpoints(self) -> list[Endpoint]:
        """This worker's ends of all open groups."""

    def longest_wait(self) -> tuple[Endpoint, int, str, float] | None:
        """The collective that has been running for longest: its group, its number and kind, and its seconds."""

    def record(self, recorder: Recorder | None) -> None:
        """Give results that come from other machines to this recorder from now on; None ends the recording."""

    def vouch(self, vouching: bool) -> None:
        """While a job is set up, let this role's contribution to an all-gather stand for those of vacant roles."""

    # -- rehearsals ------------------------------------------------------------------------------------------------

    def assume(self, role: int, sandbox: Sandbox | None = None, mates: Roster | None = None) -> None:
        """Take a role before the first switch: its groups are answered by the sandbox until then. Groups of an earlier
        rehearsal are closed. Groups among `mates`, workers that rehearse at the same time, are opened for real."""

    def become(self, role: int, groups: dict[str, tuple[int, ...]]) -> None:
        """Change to another role before the first switch. `groups` has the roles of each group by its present name."""

    def end_rehearsal(self) -> None:
        """Close what was opened among mates. Mates that still rehearse are answered by their sandboxes."""

    @property
    def lost_mates(self) -> bool:
        """Whether a worker with which this one rehearses has died."""

    # -- state -----------------------------------------------------------------------------------------------------

    def expect_state(self, generation: int, take: Callable[[Link], None]) -> None:
        """Call `take`, on the thread of the event loop, with each link that brings state for this generation. A link
        that was dialled before waits for this call."""

    def dial_state(self, roster: Roster, taker: str, count: int) -> list[Link]:
        """Links over which to give state to a worker of this roster. Blocks until the worker expects them; raises
        LinkFailed otherwise."""

    def expect_copy(self, generation: int, take: Callable[[Link], None]) -> None:
        """Call `take`, on the thread of the event loop, with each link over which a worker of this generation sends
        copies of its state, until the generation ends."""

    def dial_copy(self, roster: Roster, keeper: str, count: int, *, attempt: int = 0) -> Future[list[Link]]:
        """Links over which to send copies to a worker of this roster, once it expects them.

        The rails of the links are numbered from attempt * count on, so that the keeper can tell which links belong
        together after some were lost."""
