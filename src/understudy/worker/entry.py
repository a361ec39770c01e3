"""A worker process: it starts the runtime and runs the training script."""

from __future__ import annotations

import os
import runpy
import secrets
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from understudy.comm.endpoint import Transport
from understudy.comm.native.transport import NativeTransport
from understudy.comm.network import NetworkFabric
from understudy.comm.torch.transport import TorchTransport
from understudy.host.extensions import Extensions
from understudy.host.logs import show_log
from understudy.host.temporary import settle
from understudy.protocol.messages import ExtensionMessage, Resume, ScriptFailure, ToWorker, WorkerSpec
from understudy.protocol.roster import Roster

from .agent_connection import AgentConnection
from .driver import Dismissed
from .identity import watch_environment
from .job import Job, changes_parameters
from .process import TorchProcess
from .runtime import Concluded, EnterAgain, JobError, WorkerRuntime

Train = Callable[[Job], object]
_runtime: WorkerRuntime | None = None


def run(train: Train) -> None:
    """Run a training function. Under `understudy run`: for the role of this process; in a script that is started by
    itself: as the only role of a job of its own. `train(job)` may be entered more than once, each time for another
    role."""
    if _runtime is None:
        _alone(train)
    else:
        settle()  # this process may be killed at any moment; the script cannot choose another temporary folder any more
        perform(_runtime, train)


def perform(runtime: WorkerRuntime, train: Train) -> None:
    """Enter a training function, once for each role that this worker is given, until training ends."""
    while (stopped := _enter(runtime, train)) is None:
        runtime.leave()
        runtime.enter()
    runtime.done(stopped=stopped)


def _enter(runtime: WorkerRuntime, train: Train) -> bool | None:
    """Enter the training function once. Returns whether training was stopped; None if it is to be entered again."""
    job = Job(runtime)
    runtime.identity.inside = True
    try:
        train(job)
        job._close()
    except EnterAgain:
        return None
    except Exception:
        if runtime.again():
            return None
        raise
    finally:
        job._left()
    return job._stopped


def _one_line(error: BaseException) -> str:
    """The error and its place in the script, for people."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename or '').name}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parents[1])
    own = [frame for frame in frames if not frame.filename.startswith(here) and "/torch/" not in frame.filename]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{where}"


def _alone(train: Train) -> None:
    """Run a job of one role in this process."""
    spec = WorkerSpec(
        uid="w0",
        machine="m0",
        slot=0,
        job="alone",
        secret=secrets.token_bytes(16),
        script=sys.argv[0],
        args=(),
        nproc=1,
        mesh=(("dp", 1),),
    )
    _announce(spec)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    fabric = NetworkFabric(spec.uid, spec.machine, job=spec.job, secret=spec.secret)
    runtime = WorkerRuntime(spec, fabric, lambda message: None, TorchProcess(fabric))
    try:
        runtime.hear(Resume(Roster.of(1, [(0, spec.uid)], [fabric.worker]), 0))
        runtime.enter()
        settle()
        perform(runtime, train)
    finally:
        runtime.process.uninstall()
        runtime.close()
        fabric.close()


def _announce(spec: WorkerSpec) -> None:
    """Set the environment variables that scripts and libraries read."""
    os.environ.update(
        WORLD_SIZE=str(spec.roles),
        LOCAL_RANK=str(spec.slot),
        LOCAL_WORLD_SIZE=str(spec.nproc),
        MASTER_ADDR=spec.host,
        MASTER_PORT="0",
    )


def transport_named(name: str) -> Transport:
    """A transport by its name: `native`, or `torch:BACKEND` for a backend of torch, rebuilt for every generation."""
    if name == "native":
        return NativeTransport()
    if name.startswith("torch:"):
        return TorchTransport(name.removeprefix("torch:"))
    raise ValueError(f"there is no transport {name!r}; use native or torch:gloo")


def main(connection_fd: int, data: bytes) -> None:
    """Run a worker process, from the fork to the end of the script."""
    global _runtime
    spec = msgspec.msgpack.decode(data, type=WorkerSpec)
    show_log()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    _announce(spec)
    connection = AgentConnection(socket.socket(fileno=connection_fd))
    fabric = NetworkFabric(
        spec.uid,
        spec.machine,
        job=spec.job,
        secret=spec.secret,
        host=spec.host,
        transport=transport_named(spec.settings.comm.transport),
        limit=spec.settings.comm.limit,
    )
    _runtime = runtime = WorkerRuntime(spec, fabric, connection.send, TorchProcess(fabric))
    try:
        extensions = Extensions(spec.extensions, "extend_worker", runtime, connection)

        def hear(message: ToWorker | ExtensionMessage) -> None:
            extensions.hear(message) if isinstance(message, ExtensionMessage) else runtime.hear(message)

        connection.start(hear, _orphaned)
        watch_environment(runtime.identity)
        error = live(runtime, lambda: _run_script(spec, runtime))
        if error is not None:
            traceback.print_exception(error)
            sys.stderr.flush()
            raise SystemExit(1)
    finally:
        if dist.is_initialized():
            runtime.process.uninstall()
        runtime.close()
        fabric.close()
        connection.close()


def live(runtime: WorkerRuntime, script: Callable[[], object]) -> BaseException | None:
    """Wait for a role, run the script, and report how it ends. Returns the error that ended it, if one did."""
    try:
        runtime.enter()
        script()
    except Dismissed:
        pass
    except Concluded:
        runtime.done(stopped=True)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        plain: ScriptFailure = "exits" if isinstance(error, SystemExit) else "raises"
        cause = error.cause if isinstance(error, JobError) else plain
        runtime.failed(_one_line(error), traceback.format_exc(), cause)
        return error
    return None


def _run_script(spec: WorkerSpec, runtime: WorkerRuntime) -> None:
    sys.argv = [spec.script, *spec.args]
    sys.path.insert(0, str(Path(spec.script).resolve().parent))

    def training(optimizer: Optimizer, *_: object) -> None:
        if not runtime.identity.inside and changes_parameters(optimizer):
            raise JobError(
                f"{type(optimizer).__name__}.step() was called, and understudy.run was not: the script trains as under "
                "torchrun, without steps that could survive a machine; put its main function into train(job) and call "
                "understudy.run(train), see docs/tutorial.md",
                "no-train",
            )

    register_optimizer_step_pre_hook(training)
    runpy.run_path(spec.script, run_name="__main__")


def _orphaned(why: str) -> None:
    """End this process: without its agent a worker cannot take part in the job."""
    os.kill(os.getpid(), signal.SIGKILL)
