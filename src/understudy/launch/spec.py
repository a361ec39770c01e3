"""A job as its user describes it: on the command line or in a TOML file."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from understudy.controller.core.state import Scarcity
from understudy.masking.coverage import wipe_out
from understudy.masking.placement import PlacementError, parse
from understudy.protocol.mesh import Mesh, MeshError, check_mesh, first_replicas, parse_mesh, replica_of, roles_of
from understudy.protocol.sentences import named
from understudy.steward.decide import HOUR, Mode, StewardSettings

from . import address

KeepGradients = Literal["own", "copy", "none"]
FAULTS = "understudy.testing.faults"
"""The extension that `understudy chaos` asks for faults."""
_STARTING_S = 15.0
"""In which an agent that is started again has come."""


class SpecError(ValueError):
    """What is wrong with the description, where, and what to write instead."""


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything `understudy run` has to know."""

    script: str
    args: tuple[str, ...] = ()
    name: str = ""
    """Of the job; the script's name where none is given."""
    machines: int = 1
    standbys: int = 0
    begin_with: int = 0
    """With how many of the machines the job begins, those of whole replicas; the others' roles are vacant until there
    are to be more. 0: all."""
    local: int | None = None
    """How many of those that begin are started here; the others join from elsewhere. None: all."""
    listen: str = "127.0.0.1"
    """Where the controller listens: HOST or HOST:PORT."""
    host: str = ""
    """Where workers that are started here listen; the controller's where none is given."""
    nproc: int = 1
    """Workers per machine."""
    mesh: str = ""
    """`pp=2,dp=2,tp=2`; one dimension `dp` over all roles where none is given."""
    seed: int = 0
    steps: int | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 0
    transport: str = "native"
    heartbeat: float = 2.0
    threads: int = 1
    """Threads per worker for torch's own operations."""
    limit: float = 300.0
    """Seconds that a collective operation may take."""
    rehearsal_limit: float = 900.0
    """Seconds that a newcomer may rehearse, imports and compilation included."""
    step_limit: float = 0.0
    """Seconds that a step may take; 0: any."""
    answer_limit: float = 10.0
    """Seconds for which a worker may not answer, or be stopped by a signal."""
    no_standby: Scarcity = "wait"
    """After a failure for which there is no standby: wait for a machine, stop with a checkpoint, or go on without the
    replica (shrink)."""
    patience: float = 600.0
    """How many seconds to wait for one."""
    repair: float = 2.0
    """Seconds after which a machine whose agent has died is started again, as a standby; 0: never."""
    quarantine: int = 3
    """Failures after which a machine is not used any more."""
    steward: Mode = "tell"
    """About slow machines: off, tell what would be done, or act."""
    steward_looks: int = 10
    """Looks, one a second, in which a machine is slow before anything follows from it."""
    steward_replacements: int = 4
    """Slow machines that are replaced in an hour, at most."""
    pool: int | None = None
    """How many standbys to keep: another one is asked for when one is used. None: no more than there are come."""
    cool_down: float = 30.0
    """Seconds between two requests for machines; and for which there are too many standbys before one is released."""
    budget: int = 0
    """Machines that are asked for in an hour, at most; 0: any number."""
    provider_command: str = ""
    """What brings machines and takes them back: run with `request N` or `release NAME`; empty: they start here."""
    warm: int = 1
    """For how many machines' roles a standby keeps rehearsed workers in memory; 0: it rehearses when it is needed."""
    check_gradients: bool = False
    """Whether a step whose gradients are not finite is repeated once."""
    mask: str = ""
    """Whether steps go on without a replica that is gone, and who has its data: `anywhere`, or a placement such as
    `spare:r=3`; empty or off: all replicas are needed."""
    deterministic: bool = False
    """Whether masked steps give the same bits whoever computes what."""
    keep_gradients: KeepGradients = "own"
    """What survivors keep of a step that was interrupted."""
    copy_every: int = 0
    """Steps after which the copies of each role's state in another machine's memory are renewed; 0: there are none."""
    overlap: bool = True
    """Whether a leaver gives most of its state while its last step computes."""
    rehearsals: int = 3
    """Shadow steps of a newcomer in the sandbox."""
    recordings: str = ""
    """Folder on each machine for what newcomers rehearse with; the system's own for temporary files where empty."""
    recording_limit: float = 1024.0
    """Megabytes of it for each role; 0: nothing is recorded."""
    straggler_threshold: float = 0.10
    """By how much slower than those who do the same a worker is a straggler; 0: nobody is."""
    straggler_window: int = 20
    """For how many steps."""
    run_dir: str = ""
    at_once: int = 0
    """How many machines are drained at one boundary, at most; 0: all that a request names."""
    grace: float = 30.0
    """Seconds for which a machine that is told to go (SIGTERM) waits for somebody to take its place."""
    labels: dict[str, dict[str, str]] = {}
    """Machine → what is said of it, such as the rack it stands in."""
    chaos: bool = False
    """Whether `understudy chaos` may let faults happen inside its processes."""
    extensions: dict[str, str] = {}
    """Modules that workers and agents import at their start, with an argument for each; see host/extensions.py."""
    env: dict[str, str] = {}

    @property
    def loaded(self) -> dict[str, str]:
        """All extensions, with the one that lets faults happen."""
        return {**self.extensions, FAULTS: ""} if self.chaos else self.extensions

    @property
    def dimensions(self) -> Mesh:
        return parse_mesh(self.mesh) if self.mesh else (("dp", self.machines * self.nproc),)

    @property
    def masking(self) -> str:
        """Which data replicas have that stand in for others; empty where they do not."""
        mask = "" if self.mask == "off" else self.mask
        return mask or ("anywhere" if self.no_standby == "shrink" else "")

    @property
    def founders(self) -> int:
        """Machines with which the job begins."""
        return self.begin_with or self.machines

    @property
    def first(self) -> tuple[int, ...]:
        """The cells that they play; empty: all."""
        return first_replicas(self.dimensions, self.nproc)[self.begin_with] if self.begin_with else ()

    @property
    def started_here(self) -> int:
        return self.founders if self.local is None else self.local

    @property
    def open(self) -> bool:
        """Whether machines are expected from elsewhere."""
        elsewhere = self.started_here < self.founders or bool(self.provider_command)
        return elsewhere or not address.loopback(address.parse(self.listen)[0])

    @property
    def stewarding(self) -> StewardSettings:
        """How far the steward may go. A machine that comes back after its repair is not asked for in between."""
        return StewardSettings(
            self.steward,
            self.pool,
            self.cool_down,
            self.budget,
            self.steward_looks,
            replacements=self.steward_replacements,
            returning=self.repair + _STARTING_S if self.repair else 0.0,
        )

    @property
    def own_host(self) -> str:
        return self.host or address.parse(self.listen)[0]

    @property
    def roles(self) -> int:
        return roles_of(self.dimensions)

    @property
    def title(self) -> str:
        return self.name or re.sub(r"[^A-Za-z0-9_.-]", "-", Path(self.script).stem)


def check(spec: JobSpec) -> JobSpec:
    """The same, known to be possible."""
    for name, least in {
        "machines": 1,
        "nproc": 1,
        "standbys": 0,
        "begin_with": 0,
        "checkpoint_every": 0,
        "threads": 1,
        "quarantine": 1,
        "copy_every": 0,
        "warm": 0,
        "at_once": 0,
        "steward_looks": 1,
        "steward_replacements": 0,
        "budget": 0,
        "straggler_window": 5,
    }.items():
        if getattr(spec, name) < least:
            raise SpecError(f"{name} is {getattr(spec, name)}; it must be at least {least}")
    for name, unit in {
        "step_limit": "seconds",
        "repair": "seconds",
        "grace": "seconds",
        "recording_limit": "megabytes",
    }.items():
        if not getattr(spec, name) >= 0:
            raise SpecError(f"{name} is {getattr(spec, name)}; it must be at least 0 {unit}")
    own = [f"m{number}" for number in range(spec.machines + spec.standbys)]
    for name in spec.labels:
        if name not in own:
            raise SpecError(f"labels name a machine {name}; those that are started here are {', '.join(own)}")
    if not 0 <= spec.straggler_threshold < 10:
        given = spec.straggler_threshold
        raise SpecError(f"straggler_threshold is {given}; write a share such as 0.1 for 10 %, or 0 to switch it off")
    if spec.recordings and not Path(spec.recordings).is_dir():
        raise SpecError(f"recordings is {spec.recordings}, where there is no folder; make it, on every machine")
    _check_pool(spec)
    for name in ("heartbeat", "limit", "answer_limit", "rehearsal_limit", "patience"):
        if not getattr(spec, name) > 0:
            raise SpecError(f"{name} is {getattr(spec, name)}; it must be more than 0 seconds")
    if spec.local is not None and not 0 <= spec.local <= spec.founders:
        whose = "with which it begins" if spec.begin_with else "of the job"
        raise SpecError(f"local is {spec.local}; it must be from 0 to {spec.founders}, the number of machines {whose}")
    try:
        if address.everywhere(address.parse(spec.listen)[0]) and not spec.host:
            raise SpecError(f"listen is {spec.listen}, all addresses; say with host which one others are to use")
        address.check_host(spec.own_host)
    except address.AddressError as error:
        raise SpecError(str(error)) from None
    if spec.steps is not None and spec.steps < 1:
        raise SpecError(f"steps is {spec.steps}; it must be at least 1")
    try:
        check_mesh(spec.dimensions, spec.machines, spec.nproc)
    except MeshError as error:
        raise SpecError(str(error)) from None
    _check_masking(spec)
    if spec.begin_with:
        _check_beginning(spec)
    if spec.name and (not re.fullmatch(r"[A-Za-z0-9_.-]+", spec.name) or not spec.name.strip(".")):
        raise SpecError(f"name is {spec.name!r}; it must consist of letters, digits and the signs _ . -")
    script = Path(spec.script)
    if script.is_dir():
        raise SpecError(f"{spec.script} is a folder; name the training script in it")
    if not script.is_file():
        raise SpecError(f"there is no script {spec.script}; give the path of a training script or a TOML file")
    if spec.run_dir and (Path(spec.run_dir) / "ledger.sqlite").exists():
        raise SpecError(f"run_dir {spec.run_dir} has the ledger of another job in it; name another folder")
    if spec.checkpoint_every and not spec.checkpoint:
        raise SpecError("checkpoint_every without a place to put them; give --checkpoint DIR, too")
    if spec.transport != "native" and not re.fullmatch(r"torch:\w+", spec.transport):
        raise SpecError(f"there is no transport {spec.transport!r}; use native or torch:gloo")
    return spec


def _check_pool(spec: JobSpec) -> None:
    try:
        words = shlex.split(spec.provider_command)
    except ValueError as error:
        raise SpecError(f"provider_command is {spec.provider_command!r}: {error}; quote it as in a shell") from None
    if words and shutil.which(words[0]) is None:
        raise SpecError(f"provider_command: there is no command {words[0]}; give its path, and make it executable")
    if not 0 <= spec.cool_down <= HOUR:
        raise SpecError(f"cool_down is {spec.cool_down}; it must be from 0 to {HOUR:.0f} seconds")
    if spec.pool is None:
        if spec.budget:
            raise SpecError("budget is about standbys that are asked for; say with --pool how many there should be")
        return
    if spec.pool < 0:
        raise SpecError(f"pool is {spec.pool}; it must be at least 0")
    if spec.started_here < spec.founders and not spec.provider_command:
        why = "machines come from elsewhere and nobody can be asked for one"
        raise SpecError(f"pool is {spec.pool}, but {why}; give --provider-command, or leave out --pool")


def _check_masking(spec: JobSpec) -> None:
    """As far as it is known before the script has said how its model is replicated."""
    if spec.mask == "off" and spec.no_standby == "shrink":
        raise SpecError("mask is off, but no_standby is shrink, which masks; leave out one of them")
    if not spec.masking:
        if spec.deterministic:
            raise SpecError("deterministic is about steps without some replicas; give --mask anywhere, too")
        return
    replicas, _ = replica_of(spec.dimensions, 0)
    if replicas < 2:
        dims = ", ".join(f"{name}={size}" for name, size in spec.dimensions)
        raise SpecError(f"mask is {spec.masking}, but a mesh {dims} has one replica only; nobody could stand in for it")
    try:
        parse(spec.masking, replicas)
    except PlacementError as error:
        raise SpecError(f"mask: {error}") from None


def _check_beginning(spec: JobSpec) -> None:
    """Whether the machines with which it begins are whole replicas that have all data between them."""
    few, (replicas, _) = spec.begin_with, replica_of(spec.dimensions, 0)
    if not spec.masking:
        raise SpecError(
            f"begin_with is {few}, but all {spec.machines} machines are needed without masking; give --mask anywhere"
        )
    possible = first_replicas(spec.dimensions, spec.nproc)
    if few not in possible:
        dims = ", ".join(f"{name}={size}" for name, size in spec.dimensions)
        raise SpecError(
            f"begin_with is {few}, but so many machines are no whole number of replicas of a mesh {dims} with "
            f"{spec.nproc} workers a machine; it can be {', '.join(map(str, possible))}"
        )
    live = range(replicas * few // spec.machines)
    lost = wipe_out(parse(spec.masking, replicas), live)
    if lost:
        raise SpecError(
            f"begin_with is {few}, {len(live)} of {replicas} replicas, none of which holds "
            f"{named('shard', lost.shards)} ({spec.masking}); begin with more machines"
        )


def from_toml(path: Path) -> dict[str, Any]:
    """The settings in a file. Paths in it are relative to the file."""
    try:
        settings = tomllib.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from None
    known = [field.name for field in msgspec.structs.fields(JobSpec)]
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
            raise SpecError(f"{path}: there is no setting {key!r}{hint}")
    for key in ("script", "run_dir", "checkpoint", "recordings"):
        if isinstance(value := settings.get(key), str) and value:
            settings[key] = str(path.parent / value)
    return settings


def make(settings: dict[str, Any], where: str = "") -> JobSpec:
    """A job from settings that may have any type."""
    try:
        if "script" not in settings:
            raise SpecError('it names no script; add a line such as script = "train.py"')
        policy = settings.get("no_standby", "wait")
        if policy not in get_args(Scarcity):
            raise SpecError(f"no_standby is {policy!r}; write wait, stop (with a checkpoint) or shrink (mask it)")
        keeping = settings.get("keep_gradients", "own")
        if keeping not in get_args(KeepGradients):
            raise SpecError(f"keep_gradients is {keeping!r}; write own (where they are), copy, or none")
        mode = settings.get("steward", "tell")
        if mode not in get_args(Mode):
            raise SpecError(f"steward is {mode!r}; write off, tell (what it would do) or act")
        return check(msgspec.convert(settings, JobSpec))
    except msgspec.ValidationError as error:
        prefix = f"{where}: " if where else ""
        raise SpecError(f"{prefix}{_plain(str(error))}") from None
    except SpecError as error:
        raise SpecError(f"{where}: {error}" if where else str(error)) from None


def _plain(text: str) -> str:
    """msgspec's sentence without its notation for paths."""
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", text)
    return f"{match[2]}: {match[1]}" if match else text
