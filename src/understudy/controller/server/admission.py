"""Whether a machine can be part of a job: decided when it registers, not when it is needed."""

from __future__ import annotations

import shlex

from understudy.protocol.frames import Facts


def objection(machine: str, has: Facts | None, job: Facts | None) -> str:
    """Why a machine cannot be part of the job, and the way out; empty: it can, or the job asks for nothing."""
    if job is None or has == job:
        return ""
    if has is None:
        return f"{machine} does not say what it runs; install understudy {job.understudy} there, as the job has it"
    found = []
    for what, its, ours in (
        ("understudy", has.understudy, job.understudy),
        ("torch", has.torch, job.torch),
        ("Python", has.python, job.python),
    ):
        if its != ours:
            owns = f"{what} {its}" if its else f"no {what}"
            found.append(f"has {owns} and the job runs {ours}; install the same version there")
    if has.script != job.script:
        found.append(f"has another script (digest {has.script}, the job's {job.script}); copy the job's script there")
    if has.args != job.args:
        found.append(f"gives the script {_words(has.args)} and the job gives it {_words(job.args)}; give it the same")
    if has.mesh != job.mesh:
        found.append(f"is set up for the mesh {_mesh(has.mesh)} and the job has {_mesh(job.mesh)}; give it the same")
    if has.nproc != job.nproc:
        found.append(f"has {has.nproc} workers and the job {job.nproc} per machine; start it with as many")
    return f"{machine} " + "; it also ".join(found)


def _words(args: tuple[str, ...]) -> str:
    return shlex.join(args) if args else "no arguments"


def _mesh(mesh: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh)
