"""A job as its user describes it: read from the command line or a TOML file, and checked."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from understudy.masking.coverage import wipe_out
from understudy.masking.placement import PlacementError, parse
from understudy.protocol.mesh import MeshError, check_mesh, first_replicas, replica_of
from understudy.protocol.options import Option, SettingError, options, value_of, with_options
from understudy.protocol.sentences import named
from understudy.protocol.settings import JobSpec

from . import address


class SpecError(ValueError):
    """A job that cannot run; the message names the setting, its place and what to write instead."""


def own_host(spec: JobSpec) -> str:
    """The address at which workers that are started here listen."""
    return spec.host or address.parse(spec.listen)[0]


def is_open(spec: JobSpec) -> bool:
    """Whether machines may come from other computers."""
    elsewhere = spec.started_here < spec.founders or bool(spec.provider_command)
    return elsewhere or not address.loopback(address.parse(spec.listen)[0])


# -- reading -----------------------------------------------------------------------------------------------------------


def from_toml(path: Path) -> dict[str, Any]:
    """The settings in a file, by key. Paths in the file are relative to the file.

    A setting stands at the top of the file under its key, or in the table of its sub-tree: `steward_looks = 5`, or
    `looks = 5` in `[steward]`.
    """
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from None
    known = options(JobSpec)
    try:
        found = _flat(data, known)
    except SettingError as error:
        raise SpecError(f"{path}: {error}") from None
    for key, value in found.items():
        if known[key].declared.path and isinstance(value, str) and value:
            found[key] = str(path.parent / value)
    return found


def _flat(data: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    tables: dict[str, dict[str, str]] = {}
    """Sub-tree → its settings' names in a table → their keys."""
    for key, option in known.items():
        if option.within:
            tables.setdefault(option.within[-1], {}).update({option.name: key, key: key})
    found: dict[str, Any] = {}
    for name, value in data.items():
        if name in tables and isinstance(value, dict):
            for inner, each in value.items():
                if inner not in tables[name]:
                    raise SettingError(_unknown(f"{name}.{inner}", [f"{name}.{other}" for other in tables[name]]))
                found[tables[name][inner]] = each
        elif name in known:
            found[name] = value
        else:
            raise SettingError(_unknown(name, [*known, *tables]))
    return found


def _unknown(name: str, known: Iterable[str]) -> str:
    known = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return f"there is no setting {name!r}; {hint}"


def make(values: Mapping[str, Any], where: str = "") -> JobSpec:
    """A job from settings by key, of any type. `where` names their source in errors."""
    try:
        if "script" not in values:
            raise SpecError('it names no script; add a line such as script = "train.py"')
        known = options(JobSpec)
        for key in values:
            if key not in known:
                raise SettingError(_unknown(key, known))
        spec = with_options(JobSpec(), **{key: known[key].read(value) for key, value in values.items()})
        return check(_resolved(spec))
    except (SpecError, SettingError) as error:
        raise SpecError(f"{where}: {error}" if where else str(error)) from None


def _resolved(spec: JobSpec) -> JobSpec:
    """The job with whole paths of folders, and with masking as the policy for lost machines wants it."""
    settings, changes = spec.settings, {}
    for key, folder in (("checkpoint", settings.checkpoint.folder), ("recordings", settings.standbys.recordings)):
        if folder:
            changes[key] = str(Path(folder).resolve())
    mask, shrinks = settings.masking.mask, settings.recovery.no_standby == "shrink"
    if mask == "off" and shrinks:
        raise SpecError("mask is off, but no_standby is shrink, which masks; leave out one of them")
    if mask == "off":
        changes["mask"] = ""
    elif shrinks:
        changes["mask"] = mask or "anywhere"
    return with_options(spec, **changes)


# -- checking ----------------------------------------------------------------------------------------------------------


def check(spec: JobSpec) -> JobSpec:
    """Return the job. Raises SpecError if it cannot run."""
    try:
        for option in options(spec).values():
            option.check(value_of(spec, option))
        check_mesh(spec.dimensions, spec.machines, spec.nproc)
        if address.everywhere(address.parse(spec.listen)[0]) and not spec.host:
            raise SpecError(f"listen is {spec.listen}, all addresses; say with host which one others are to use")
        address.check_host(own_host(spec))
    except (SettingError, MeshError, address.AddressError) as error:
        raise SpecError(str(error)) from None
    _check_files(spec)
    _check_machines(spec)
    _check_masking(spec)
    if spec.begin_with:
        _check_beginning(spec)
    transport = spec.settings.comm.transport
    if transport != "native" and not re.fullmatch(r"torch:\w+", transport):
        raise SpecError(f"there is no transport {transport!r}; use native or torch:gloo")
    return spec


def _check_files(spec: JobSpec) -> None:
    if spec.name and (not re.fullmatch(r"[A-Za-z0-9_.-]+", spec.name) or not spec.name.strip(".")):
        raise SpecError(f"name is {spec.name!r}; it must consist of letters, digits and the signs _ . -")
    script = Path(spec.script)
    if script.is_dir():
        raise SpecError(f"{spec.script} is a folder; name the training script in it")
    if not script.is_file():
        raise SpecError(f"there is no script {spec.script}; give the path of a training script or a TOML file")
    if spec.run_dir and (Path(spec.run_dir) / "ledger.sqlite").exists():
        raise SpecError(f"run_dir {spec.run_dir} has the ledger of another job in it; name another folder")
    checkpoint, recordings = spec.settings.checkpoint, spec.settings.standbys.recordings
    if checkpoint.every and not checkpoint.folder:
        raise SpecError("checkpoint_every without a folder for checkpoints; give --checkpoint DIR, too")
    if recordings and not Path(recordings).is_dir():
        raise SpecError(f"recordings is {recordings}, which is no folder; make it, on every machine")


def _check_machines(spec: JobSpec) -> None:
    own = [f"m{number}" for number in range(spec.machines + spec.standbys)]
    for name in spec.labels:
        if name not in own:
            raise SpecError(f"labels name a machine {name}; those that are started here are {', '.join(own)}")
    if spec.local is not None and not 0 <= spec.local <= spec.founders:
        whose = "with which it begins" if spec.begin_with else "of the job"
        raise SpecError(f"local is {spec.local}; it must be from 0 to {spec.founders}, the number of machines {whose}")
    try:
        command = shlex.split(spec.provider_command)
    except ValueError as error:
        raise SpecError(f"provider_command is {spec.provider_command!r}: {error}; quote it as in a shell") from None
    if command and shutil.which(command[0]) is None:
        raise SpecError(f"provider_command: there is no command {command[0]}; give its path, and make it executable")
    steward = spec.settings.steward
    if steward.pool is None and steward.budget:
        raise SpecError("budget limits the requests for standbys; say with --pool how many standbys there should be")
    if steward.pool is not None and spec.started_here < spec.founders and not command:
        why = "machines come from elsewhere and no command brings one"
        raise SpecError(f"pool is {steward.pool}, but {why}; give --provider-command, or leave out --pool")


def _check_masking(spec: JobSpec) -> None:
    """As far as it is known before the script has said how its model is replicated."""
    masking = spec.settings.masking
    if not masking.mask:
        if masking.deterministic:
            raise SpecError("deterministic is about steps without some replicas; give --mask anywhere, too")
        return
    replicas, _ = replica_of(spec.dimensions, 0)
    if replicas < 2:
        raise SpecError(
            f"mask is {masking.mask}, but a mesh {_dimensions(spec)} has one replica only; masking needs two"
        )
    try:
        parse(masking.mask, replicas)
    except PlacementError as error:
        raise SpecError(f"mask: {error}") from None


def _check_beginning(spec: JobSpec) -> None:
    """The machines with which the job begins must be whole replicas that have all data between them."""
    few, mask, (replicas, _) = spec.begin_with, spec.settings.masking.mask, replica_of(spec.dimensions, 0)
    if not mask:
        raise SpecError(
            f"begin_with is {few}, but all {spec.machines} machines are needed without masking; give --mask anywhere"
        )
    possible = first_replicas(spec.dimensions, spec.nproc)
    if few not in possible:
        raise SpecError(
            f"begin_with is {few}, but so many machines are no whole number of replicas of a mesh {_dimensions(spec)} "
            f"with {spec.nproc} workers a machine; it can be {', '.join(map(str, possible))}"
        )
    live = range(replicas * few // spec.machines)
    lost = wipe_out(parse(mask, replicas), live)
    if lost:
        raise SpecError(
            f"begin_with is {few}, {len(live)} of {replicas} replicas, none of which holds "
            f"{named('shard', lost.shards)} ({mask}); begin with more machines"
        )


def _dimensions(spec: JobSpec) -> str:
    return ", ".join(f"{name}={size}" for name, size in spec.dimensions)
