"""Which workers record, when they give a recording up, and how a rehearsal runs without one."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
import torch

from tests.comm.helpers import Ensemble, all_reduce, at_once, enter
from understudy.agent.recordings import RecordingStore
from understudy.comm.endpoint import Endpoint
from understudy.comm.recording import Recorder, Recording, digest_of
from understudy.comm.sandbox import Echo, ObjectExchange, Replay
from understudy.comm.topology import GroupKey
from understudy.protocol.mesh import Mesh, alike, parse_mesh, roles_of
from understudy.protocol.messages import FromWorker, Recorded, Telemetry, WorkerSpec
from understudy.protocol.options import with_options
from understudy.protocol.settings import Settings
from understudy.worker.recordings import StepRecordings, label, program_key

SECRET = b"the secret of this job"


@dataclass
class Chair:
    key: GroupKey
    rank: int
    size: int
    exchange: ObjectExchange | None = None


def chair(role: int, roles: tuple[int, ...], ordinal: int = 0) -> Chair:
    return Chair(GroupKey(roles, ordinal), roles.index(role), len(roles))


# -- names of groups ---------------------------------------------------------------------------------------------------

MESH = parse_mesh("pp=2,dp=3,tp=2")
ALONG = [(), ("pp",), ("dp",), ("tp",), ("pp", "dp"), ("pp", "tp"), ("dp", "tp"), ("pp", "dp", "tp")]


@pytest.mark.parametrize("along", ALONG, ids="+".join)
def test_all_roles_call_a_group_along_the_same_dimensions_the_same(along: tuple[str, ...]) -> None:
    found = {label(MESH, chair(role, alike(MESH, role, along))) for role in range(roles_of(MESH))}
    assert found == {f"{'+'.join(along) or 'itself'}#0"}


def test_groups_of_a_role_have_names_of_their_own() -> None:
    seats = [chair(5, alike(MESH, 5, along), ordinal) for along in ALONG for ordinal in (0, 1)]
    assert len({label(MESH, seat) for seat in seats}) == len(seats)


@pytest.mark.parametrize("roles", [(0, 5), (0, 1, 2), (4, 2, 0), (1, 0)], ids=str)
def test_a_group_along_no_dimension_has_the_name_of_its_roles(roles: tuple[int, ...]) -> None:
    """Some of the roles along a dimension, or all of them in another order."""
    assert label(MESH, chair(0, roles)) == str(GroupKey(roles))


def test_a_dimension_of_one() -> None:
    mesh = parse_mesh("pp=1,dp=2")
    assert {label(mesh, chair(role, (0, 1))) for role in (0, 1)} == {"dp#0"}


# -- the program -------------------------------------------------------------------------------------------------------


def spec_of(folder: Path, *, mesh: Mesh = (("dp", 2),), **options: Any) -> WorkerSpec:
    script = folder / "train.py"
    if not script.exists():
        script.write_text("print('hello')\n")
    values: dict[str, Any] = {
        "uid": "w0",
        "machine": "m0",
        "slot": 0,
        "job": "test",
        "secret": SECRET,
        "args": (),
        "nproc": 1,
    }
    own = {name: options.pop(name) for name in values if name in options}
    settings = with_options(Settings(), **{"rehearsals": 2, "recordings": str(folder)} | options)
    return WorkerSpec(script=str(script), mesh=mesh, settings=settings, **values | own)


def test_the_same_program_on_other_machines(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    other = msgspec.structs.replace(
        spec, uid="w7", machine="m3", slot=1, host="127.0.0.2", settings=with_options(spec.settings, seed=3)
    )
    assert program_key(spec) == program_key(other)


def test_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(tmp_path)
    keys = [program_key(spec)]
    for changes in (
        {"args": ("--layers", "2")},
        {"args": ("--layers 2",)},
        {"mesh": (("pp", 2),)},
        {"mesh": (("dp", 2), ("tp", 1))},
        {"nproc": 2},
    ):
        keys.append(program_key(msgspec.structs.replace(spec, **changes)))
    Path(spec.script).write_text("print('hello!')\n")
    keys.append(program_key(spec))
    monkeypatch.setattr(torch, "__version__", "0")
    keys.append(program_key(spec))
    assert len(set(keys)) == len(keys)


# -- recording ---------------------------------------------------------------------------------------------------------


class Job:
    """Two workers on two machines; the first has a tape."""

    def __init__(self, ensemble: Ensemble, folder: Path, **options: Any) -> None:
        self.ensemble = ensemble
        self.roster, self.fabrics, self.ends = ensemble.start("m0", "m1")
        self.votes = at_once(*[partial(fabric.group, (0, 1)) for fabric in self.fabrics])
        self.said: list[FromWorker | Telemetry] = []
        self.spec = spec_of(folder, **options)
        self.tape = StepRecordings(self.spec, self.fabrics[0], self.said.append)

    def begin(self, same: tuple[int, ...] = (0, 1), role: int = 0) -> None:
        self.tape.entered(role)
        self.train()
        self.tape.first_boundary(same, self.votes[0])

    def train(self) -> None:
        for group in (self.ends, self.votes):
            at_once(*[partial(all_reduce, end, torch.ones(3)) for end in group])

    def gave_up(self) -> None:
        """It has said so once, and nothing of it is left."""
        assert self.said == [Recorded(0, "", 0, 0)]
        self.silent()

    def kept_the_build(self) -> None:
        """It has said so once, and joiners can build the model with it."""
        (recorded,) = self.said
        assert isinstance(recorded, Recorded)
        assert recorded.steps == 0
        with os.fdopen(os.dup(recorded.fd), "rb") as file:
            assert digest_of(file) == recorded.digest
            recording = Recording(file, program_key(self.spec))
        assert [(entry.phase, entry.group) for entry in recording] == [(0, "dp#0"), (0, "dp#1")]
        self.tape.boundary(99)
        self.tape.close()
        assert len(self.said) == 1
        assert self.ends[0].recorder is None

    def silent(self) -> None:
        assert self.ends[0].recorder is self.votes[0].recorder is None
        assert self.tape._file is None
        said = list(self.said)
        self.tape.boundary(99)
        self.tape.close()
        assert self.said == said


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        yield ensemble


@pytest.fixture
def job(ensemble: Ensemble, tmp_path: Path) -> Job:
    return Job(ensemble, tmp_path)


def test_the_first_steps_are_recorded(job: Job) -> None:
    """The build and two steps; whatever the step's number, a job may have begun with a checkpoint. Votes are not."""
    job.begin()
    for step in (40, 41, 42):
        assert job.said == []
        job.tape.boundary(step)
        job.train()
    (recorded,) = job.said
    assert isinstance(recorded, Recorded)
    assert (recorded.role, recorded.steps, recorded.url) == (0, 2, "")
    with os.fdopen(os.dup(recorded.fd), "rb") as file:
        assert digest_of(file) == recorded.digest
        assert os.fstat(recorded.fd).st_size == recorded.bytes
        recording = Recording(file, program_key(job.spec))
    assert [(entry.phase, entry.group) for entry in recording] == [
        (0, "dp#0"), (0, "dp#1"), (1, "dp#0"), (2, "dp#0"),
    ]  # fmt: skip
    assert [end.recorder for end in job.ends] == [None, None]
    job.tape.boundary(43)
    assert len(job.said) == 1
    os.fstat(recorded.fd)  # for as long as this worker lives
    job.tape.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(recorded.fd)


def test_a_step_is_begun_again(job: Job) -> None:
    job.begin()
    job.tape.boundary(0)
    job.tape.boundary(0)
    job.kept_the_build()


def test_an_interrupted_step(job: Job) -> None:
    """The report comes before the decision about the step: the joiner may need the recording."""
    job.begin()
    job.tape.boundary(0)
    job.train()
    job.tape.interrupted()
    job.kept_the_build()
    job.tape.interrupted()
    assert len(job.said) == 1


def test_a_fault_while_the_model_is_built(job: Job) -> None:
    """What was recorded of the build is not all of it."""
    job.begin()
    job.fabrics[0].interrupt("a test")
    job.tape.boundary(0)
    job.gave_up()


def test_a_fault(job: Job) -> None:
    job.begin()
    job.tape.boundary(0)
    job.fabrics[0].interrupt("a test")
    job.tape.boundary(1)
    job.kept_the_build()


def test_another_generation(job: Job) -> None:
    job.begin()
    job.tape.boundary(0)
    enter(job.roster.successor({}), job.fabrics)
    job.tape.boundary(1)
    job.kept_the_build()


def test_something_could_not_be_written(job: Job) -> None:
    job.begin()
    assert job.tape._file is not None
    job.tape._file.close()
    job.tape.boundary(0)
    all_of = [partial(all_reduce, end, torch.full((3,), 7.0)) for end in job.ends]
    assert [value.tolist() for value in at_once(*all_of)] == [[14.0] * 3] * 2
    job.tape.boundary(1)
    job.gave_up()


def test_the_disk_is_full_at_the_end(
    ensemble: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was recorded had room in memory: it is noticed when all is to be written."""

    def full(**_: object) -> IO[bytes]:
        return Path("/dev/full").open("w+b")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    job = Job(ensemble, tmp_path)
    job.begin()
    for step in range(3):
        assert job.said == []
        job.tape.boundary(step)
        job.train()
    job.gave_up()
    assert "w0 could not finish its recording" in caplog.text


def test_the_folder_is_not_there(ensemble: Ensemble, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(ensemble, tmp_path)
    settings = with_options(job.spec.settings, recordings=str(tmp_path / "nowhere"))
    job.tape._spec = msgspec.structs.replace(job.spec, settings=settings)
    job.begin()
    job.gave_up()
    assert "w0 cannot record" in caplog.text
    assert "joiners rehearse with made-up values" in caplog.text


def test_the_script_is_gone(ensemble: Ensemble, tmp_path: Path) -> None:
    job = Job(ensemble, tmp_path)
    Path(job.spec.script).unlink()
    job.begin()
    job.gave_up()


@pytest.mark.parametrize("options", [{"recording_limit": 0}, {"nproc": 2}], ids=str)
def test_no_recording_is_made_if_it_is_not_needed(ensemble: Ensemble, tmp_path: Path, options: dict[str, Any]) -> None:
    """Recording is switched off, or the job has one machine only."""
    job = Job(ensemble, tmp_path, **options)
    job.begin()
    job.gave_up()


def test_another_one_of_the_same_records(job: Job) -> None:
    """The worker reports nothing: the controller does not wait for its recording."""
    job.begin(role=1)
    assert job.said == []
    job.silent()


def test_a_role_that_turns_out_to_have_no_twin(ensemble: Ensemble, tmp_path: Path) -> None:
    """As with sharded state: each role records. Of the build it has sizes and objects only, which cannot be made up."""
    job = Job(ensemble, tmp_path)
    job.tape.entered(1)
    at_once(*[partial(all_reduce, end, torch.full((2,), 3)) for end in job.ends])
    job.train()
    job.tape.first_boundary((1,), job.votes[0])
    for step in range(3):
        job.tape.boundary(step)
        job.train()
    (recorded,) = job.said
    assert isinstance(recorded, Recorded)
    with os.fdopen(os.dup(recorded.fd), "rb") as file:
        recording = Recording(file, program_key(job.spec))
    values = [(entry.phase, recording.data(entry.results[0])) for entry in recording if entry.group == "dp#0"]
    kept = [(phase, data and torch.frombuffer(bytearray(data), dtype=torch.int32)[0].item()) for phase, data in values]
    two = torch.tensor(2.0).view(torch.int32).item()
    assert kept == [(0, 6), (0, None), (1, two), (2, two)]
    job.tape.close()


# -- rehearsing --------------------------------------------------------------------------------------------------------


class OtherStore:
    """A store on another machine, with one recording in it."""

    def __init__(self, folder: Path, key: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._store = RecordingStore("127.0.0.1", SECRET)
        path = folder / "recording"
        with path.open("w+b") as file:
            recorder = Recorder(file, key, 0, 1 << 20, lambda _: "dp#0")
            recorder.note(None, "all_reduce", 0, [torch.ones(3)])
            digest, size = recorder.finish(1)
        url = asyncio.run_coroutine_threadsafe(self._store.keep(digest, str(path)), self._loop).result(10)
        self.recorded = Recorded(0, digest, size, 1, url)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._store.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def joiner(ensemble: Ensemble, tmp_path: Path) -> StepRecordings:
    (fabric,) = ensemble.hire("m9")
    return StepRecordings(spec_of(tmp_path), fabric, lambda _: None)


@pytest.fixture
def other_store(tmp_path: Path) -> Iterator[OtherStore]:
    found = OtherStore(tmp_path, program_key(spec_of(tmp_path)))
    yield found
    found.close()


def made_up(joiner: StepRecordings, recorded: Recorded, caplog: pytest.LogCaptureFixture) -> str:
    """Why it falls back."""
    assert isinstance(joiner.sandbox(recorded), Echo)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    who, _, why = record.message.partition(" rehearses with made-up values: ")
    assert who == "w0"
    joiner.shadow_step(1)
    assert joiner.diverged == ""
    return why


def test_a_recording_is_fetched_once(
    joiner: StepRecordings, other_store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = joiner.sandbox(other_store.recorded)
    assert isinstance(first, Replay)
    unreachable = msgspec.structs.replace(other_store.recorded, url="http://127.0.0.1:1/")
    second = joiner.sandbox(unreachable)
    assert isinstance(second, Replay)
    assert second is not first
    joiner.shadow_step(1)
    assert joiner.diverged == (
        "group dp#0: none of 0 was recorded while the model was built and the script has not called it"
    )
    assert isinstance(joiner.sandbox(None), Echo)
    assert joiner.diverged == ""
    assert caplog.records == []


def test_a_joiner_frees_the_recording_after_its_rehearsal(
    joiner: StepRecordings, other_store: OtherStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[Recording] = []
    monkeypatch.setattr(Recording, "rest", lambda recording: rested.append(recording))
    joiner.sandbox(other_store.recorded)
    joiner.shadow_step(1)
    assert not rested
    joiner.rehearsed()
    assert len(rested) == 1


def test_a_proxy_is_not_asked(joiner: StepRecordings, other_store: OtherStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(joiner.sandbox(other_store.recorded), Replay)


def test_a_machine_that_is_gone(
    joiner: StepRecordings, other_store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    recorded = msgspec.structs.replace(other_store.recorded, url=f"http://127.0.0.1:{port}/recordings/x")
    assert "refused" in made_up(joiner, recorded, caplog)


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://[::1", "http://127.0.0.1:port/", "gopher://a/b"])
def test_an_address_that_is_none(
    joiner: StepRecordings, other_store: OtherStore, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    assert made_up(joiner, msgspec.structs.replace(other_store.recorded, url=url), caplog)


def test_one_that_is_no_longer_there(
    joiner: StepRecordings, other_store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = msgspec.structs.replace(other_store.recorded, url=f"{other_store.recorded.url}0")
    assert "404" in made_up(joiner, recorded, caplog)


def test_another_one_than_was_asked_for(
    joiner: StepRecordings, other_store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = msgspec.structs.replace(other_store.recorded, digest="0" * 32)
    assert "not the one that was asked for" in made_up(joiner, recorded, caplog)


def test_one_of_another_program(
    joiner: StepRecordings, other_store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    Path(joiner._spec.script).write_text("print('something else')\n")
    assert "of another script, mesh or version" in made_up(joiner, other_store.recorded, caplog)


def test_one_that_ends_too_early(
    joiner: StepRecordings, other_store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that dies while it gives."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(10_000)
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of it")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/recordings/x"
        assert made_up(joiner, msgspec.structs.replace(other_store.recorded, url=url), caplog)
        thread.join(5)


def test_a_whole_life(ensemble: Ensemble, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Recorded by one worker, kept by its agent, and replayed by a joiner for its twin."""
    job = Job(ensemble, tmp_path)
    job.begin()
    results = []
    for step in range(3):
        job.tape.boundary(step)
        sums = [partial(all_reduce, end, torch.full((2,), 3.0**step + end.rank)) for end in job.ends]
        results.append(at_once(*sums)[0].tolist())
    (recorded,) = job.said
    assert isinstance(recorded, Recorded)

    async def serve() -> tuple[list[list[float]], str]:
        store = RecordingStore("127.0.0.1", SECRET)
        url = await store.keep(recorded.digest, f"/proc/self/fd/{recorded.fd}")
        job.tape.close()
        try:
            return await asyncio.to_thread(rehearse, msgspec.structs.replace(recorded, url=url, fd=-1))
        finally:
            await store.close()

    def rehearse(recorded: Recorded) -> tuple[list[list[float]], str]:
        (fabric,) = ensemble.hire("m9")
        tape = StepRecordings(msgspec.structs.replace(job.spec, uid="w2"), fabric, lambda _: None)
        fabric.assume(1, tape.sandbox(recorded))
        ends = [fabric.group((0, 1)) for _ in range(2)]
        return _rehearse(tape, ends), tape.diverged

    assert asyncio.run(serve()) == ([results[0], results[1], results[1]], "")
    assert caplog.records == []


def _rehearse(tape: StepRecordings, ends: list[Endpoint]) -> list[list[float]]:
    for end in ends:
        all_reduce(end, torch.ones(3))
    found = []
    for step in (1, 2, 3):
        tape.shadow_step(step)
        found.append(all_reduce(ends[0], torch.zeros(2)).tolist())
    return found
