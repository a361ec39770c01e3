from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.controller.server.spec import ControlSpec
from understudy.launch.spec import SpecError, check, from_toml, is_open, make
from understudy.protocol.options import options, with_options
from understudy.protocol.settings import FAULTS, JobSpec


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def mistake(settings: dict[str, Any], where: str = "") -> str:
    """The one sentence about it."""
    with pytest.raises(SpecError) as raised:
        make(settings, where)
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith(f"{where}: " if where else "")
    return text


def toml_mistake(path: Path) -> str:
    with pytest.raises(SpecError) as raised:
        make(from_toml(path), str(path))
    text = str(raised.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_little_has_to_be_said(script: Path) -> None:
    spec = make({"script": str(script)})
    assert (spec.machines, spec.nproc, spec.standbys, spec.roles, spec.title) == (1, 1, 0, 1, "train")
    assert spec.dimensions == (("dp", 1),)


def test_roles_are_data_parallel_unless_a_mesh_is_given(script: Path) -> None:
    assert make({"script": str(script), "machines": 3, "nproc": 2}).dimensions == (("dp", 6),)
    spec = make({"script": str(script), "machines": 4, "nproc": 2, "mesh": "pp=2,dp=2,tp=2"})
    assert spec.dimensions == (("pp", 2), ("dp", 2), ("tp", 2))
    assert spec.roles == 8


@pytest.mark.parametrize("name", ["my job!.py", "ünder.py", "a b c.py", "..py", "x.tar.py"])
def test_a_title_is_good_for_a_file_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("")
    title = make({"script": str(path)}).title
    assert title
    assert all(letter.isascii() and (letter.isalnum() or letter in "_.-") for letter in title)


@pytest.mark.parametrize("name", ["a/b", "../up", "", "a b", "ü", "x\n", ".", ".."])
def test_a_name_that_is_given_is_good_for_a_file_name_or_refused(script: Path, name: str) -> None:
    if name == "":
        assert make({"script": str(script), "name": name}).title == "train"
    else:
        text = mistake({"script": str(script), "name": name})
        assert "name" in text
        assert "letters" in text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"no_standby": "go"}, "no_standby is 'go'; write wait, stop (with a checkpoint) or shrink (mask it)"),
        ({"no_standby": "shrink"}, "mask is anywhere, but a mesh dp=1 has one replica only"),
        ({"quarantine": 0}, "quarantine is 0; it must be at least 1"),
        ({"answer_limit": 0}, "answer_limit is 0.0; it must be more than 0 seconds"),
        ({"repair": -1}, "repair is -1.0; it must be at least 0 seconds"),
        ({"grace": -1}, "grace is -1.0; it must be at least 0 seconds"),
        ({"at_once": -1}, "at_once is -1; it must be at least 0"),
        ({"labels": {"m7": {"rack": "r1"}}}, "labels name a machine m7; those that are started here are m0"),
        ({"labels": {"m0": "r1"}}, "labels[...]: Expected `object`, got `str`"),
        ({"warm": -1}, "warm is -1; it must be at least 0"),
        ({"straggler_window": 3}, "straggler_window is 3; it must be at least 5"),
        ({"straggler_threshold": -0.1}, "straggler_threshold is -0.1; write a share such as 0.1 for 10 %"),
        ({"machines": 0}, "machines is 0; it must be at least 1"),
        ({"machines": -1}, "machines is -1; it must be at least 1"),
        ({"nproc": 0}, "nproc is 0; it must be at least 1"),
        ({"standbys": -1}, "standbys is -1; it must be at least 0"),
        ({"threads": 0}, "threads is 0; it must be at least 1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"heartbeat": 0.0}, "heartbeat is 0.0; it must be more than 0 seconds"),
        ({"heartbeat": float("nan")}, "heartbeat is nan; it must be more than 0 seconds"),
        ({"limit": -1.0}, "limit is -1.0; it must be more than 0 seconds"),
        ({"checkpoint_every": -5}, "checkpoint_every is -5; it must be at least 0"),
        ({"checkpoint_every": 5}, "--checkpoint DIR"),
        ({"transport": "nccl"}, "there is no transport 'nccl'; use native or torch:gloo"),
        ({"transport": "torch:"}, "there is no transport 'torch:'; use native or torch:gloo"),
        ({"mesh": "dp=3", "machines": 2}, "mesh dp=3 has 3 roles, but 2 machines with 1 workers each have 2"),
        ({"mesh": "dp"}, "'dp' is not of the form name=size"),
        ({"mesh": "dp=1,dp=1"}, "dp is there twice"),
        ({"machines": "two"}, "machines: Expected `int`, got `str`"),
        ({"machines": 1.5}, "machines: Expected `int`, got `float`"),
        ({"machines": None}, "machines: Expected `int`, got `null`"),
        ({"args": "x"}, "args: Expected `array`, got `str`"),
        ({"args": ["x", 3]}, "args[1]: Expected `str`, got `int`"),
        ({"env": {"A": 1}}, "env[...]: Expected `str`, got `int`"),
        ({"env": ["A"]}, "env: Expected `object`, got `array`"),
        ({"heartbeat": "long"}, "heartbeat: 'long' is not a time span; write 500ms, 3s, 2m, 1.5h or 14d"),
        ({"heartbeat": True}, "heartbeat: Expected `float`, got `bool`"),
        ({"heartbeat": "0s"}, "heartbeat is 0.0; it must be more than 0 seconds"),
        ({"steps": "many"}, "steps: Expected `int | null`, got `str`"),
    ],
)
def test_what_cannot_be_is_one_sentence_with_the_place(script: Path, settings: dict[str, Any], says: str) -> None:
    assert says in mistake({"script": str(script), **settings}, "job.toml")
    assert says in mistake({"script": str(script), **settings})


def test_no_script(tmp_path: Path) -> None:
    text = mistake({"script": str(tmp_path / "none.py")})
    assert f"there is no script {tmp_path / 'none.py'}" in text
    assert "folder" in mistake({"script": str(tmp_path)})
    assert "it names no script; add a line such as script =" in mistake({}, "job.toml")


def test_a_run_dir_that_another_job_has_used(tmp_path: Path, script: Path) -> None:
    """A controller that found the other job's ledger would go on with that one."""
    (tmp_path / "run").mkdir()
    make({"script": str(script), "run_dir": str(tmp_path / "run")})
    (tmp_path / "run" / "ledger.sqlite").touch()
    text = mistake({"script": str(script), "run_dir": str(tmp_path / "run")})
    assert f"run_dir {tmp_path / 'run'} has the ledger of another job in it; name another folder" in text


# -- TOML --------------------------------------------------------------------------------------------------------------


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


def test_a_file_says_everything(tmp_path: Path, script: Path) -> None:
    path = toml(
        tmp_path,
        'script = "train.py"\nargs = ["--lr", "1"]\nname = "gpt"\nmachines = 2\nnproc = 2\nmesh = "dp=2,tp=2"\n'
        'steps = 5\nseed = 3\nheartbeat = 1\n[env]\nA = "1"\n',
    )
    spec = make(from_toml(path), str(path))
    assert spec == with_options(
        JobSpec(),
        script=str(script),
        args=("--lr", "1"),
        name="gpt",
        machines=2,
        nproc=2,
        mesh="dp=2,tp=2",
        steps=5,
        seed=3,
        heartbeat=1.0,
        env={"A": "1"},
    )
    assert check(spec) is spec


def test_paths_are_relative_to_their_file(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    spec = make(from_toml(toml(tmp_path, 'script = "train.py"\nrun_dir = "runs/1"\ncheckpoint = "ckpt"')))
    assert (spec.run_dir, spec.settings.checkpoint.folder) == (str(tmp_path / "runs/1"), str(tmp_path / "ckpt"))
    assert make(from_toml(toml(tmp_path, 'script = "train.py"'))).script == str(script)
    absolute = make(from_toml(toml(tmp_path, f'script = "{script}"')))
    assert absolute.script == str(script)


@pytest.mark.parametrize("name", [key for key in options(JobSpec) if len(key) > 3])
def test_a_slip_of_the_pen_is_recognized(tmp_path: Path, name: str) -> None:
    slip = name[:-2] + name[-1] + name[-2]
    text = toml_mistake(toml(tmp_path, f"{slip}x = 1"))
    assert f"there is no setting '{slip}x'; did you mean {name}?" in text


def test_a_key_like_nothing(tmp_path: Path) -> None:
    text = toml_mistake(toml(tmp_path, "qqqq = 1"))
    assert "there is no setting 'qqqq'; known are script, args, name, machines" in text


def test_durations_are_written_as_durations(tmp_path: Path, script: Path) -> None:
    path = toml(tmp_path, 'script = "train.py"\ncool_down = "2s"\nlimit = "5m"\nheartbeat = 1.5\npatience = 60')
    settings = make(from_toml(path)).settings
    assert (settings.steward.cool_down, settings.comm.limit) == (2.0, 300.0)
    assert (settings.recovery.heartbeat, settings.recovery.patience) == (1.5, 60.0)


def test_settings_may_stand_in_tables(tmp_path: Path, script: Path) -> None:
    text = 'script = "train.py"\nstandbys = 1\n[standbys]\nwarm = 2\n'
    assert "is not valid TOML" in toml_mistake(toml(tmp_path, text))  # it is the count or the table
    text = (
        'script = "train.py"\n[steward]\nmode = "act"\nlooks = 5\n[checkpoint]\nfolder = "kept"\ncheckpoint_every = 3'
    )
    settings = make(from_toml(toml(tmp_path, text))).settings
    assert (settings.steward.mode, settings.steward.looks) == ("act", 5)
    assert (settings.checkpoint.folder, settings.checkpoint.every) == (str(tmp_path / "kept"), 3)
    text = toml_mistake(toml(tmp_path, 'script = "train.py"\n[steward]\nlocks = 5'))
    assert "there is no setting 'steward.locks'; did you mean steward.looks?" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("machines = ", "is not valid TOML"),
        ('script = "train.py', "is not valid TOML"),
        ("script = 3", "script: Expected `str`, got `int`"),
        ('script = ["train.py"]', "script: Expected `str`, got `array`"),
        ('script = "nowhere.py"', "there is no script"),
        ("machines = 2", "script"),
        ('script = "train.py"\nmachines = "two"', "machines: Expected `int`, got `str`"),
        ('script = "train.py"\nmachines = true', "machines: Expected `int`, got `bool`"),
        ('script = "train.py"\nmachines = 2024-01-01', "machines: Expected `int`"),
        ('script = "train.py"\n[machines]\nn = 1', "machines: Expected `int`, got `object`"),
        ('script = "train.py"\nmesh = "dp=7"', "mesh dp=7 has 7 roles"),
    ],
)
def test_what_is_wrong_in_a_file(tmp_path: Path, script: Path, text: str, says: str) -> None:
    assert says in toml_mistake(toml(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in toml_mistake(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "Is a directory" in toml_mistake(tmp_path / "folder.toml")
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xff\xfe = 1")
    assert "is not valid TOML" in toml_mistake(path)


values = st.one_of(st.none(), st.booleans(), st.integers(-3, 5), st.floats(), st.text(max_size=5), st.just([]))
names = st.sampled_from(list(options(JobSpec)))


@given(st.dictionaries(names, values, max_size=5), st.integers())
def test_any_settings_are_a_job_or_one_sentence(settings: dict[str, Any], salt: int) -> None:
    settings = {**settings, "script": __file__} if salt % 2 else settings
    try:
        spec = make(settings, "job.toml")
    except SpecError as error:
        assert str(error).startswith("job.toml: ")  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert spec.roles == spec.machines * spec.nproc
        assert all(a is b for a, b in itertools.pairwise([spec, check(spec)]))


def test_masking(script: Path) -> None:
    four = {"script": str(script), "machines": 4}
    spec = make({**four, "mask": "anywhere", "deterministic": True, "keep_gradients": "copy"})
    assert (spec.settings.masking.mask, spec.settings.masking.deterministic, spec.settings.masking.keep_gradients) == (
        "anywhere",
        True,
        "copy",
    )
    assert make({**four, "mask": "off"}).settings.masking.mask == ""
    assert make({**four, "no_standby": "shrink"}).settings.masking.mask == "anywhere"
    assert make({**four, "mesh": "pp=2,dp_replicate=2", "mask": "anywhere"}).settings.masking.mask == "anywhere"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mask": "everywhere"}, "no placement 'everywhere'"),
        ({"mask": "spare:r=3"}, "at most r="),
        ({"mask": "anywhere", "mesh": "pp=4"}, "one replica only"),
        ({"mask": "off", "no_standby": "shrink"}, "mask is off, but no_standby is shrink, which masks; leave out one"),
        ({"deterministic": True}, "--mask"),
        ({"keep_gradients": "all"}, "own"),
    ],
)
def test_masking_that_cannot_be(script: Path, settings: dict[str, Any], said: str) -> None:
    assert said in mistake({"script": str(script), "machines": 4, **settings})


def test_beginning_with_some_of_the_machines(script: Path) -> None:
    settings = {"script": str(script), "machines": 4, "mask": "anywhere"}
    spec = make({**settings, "begin_with": 2, "mesh": "pp=2,dp=2"})
    assert (spec.founders, spec.started_here, spec.first, is_open(spec)) == (2, 2, (0, 2), False)
    assert is_open(make({**settings, "begin_with": 2, "local": 1}))
    assert (make(settings).founders, make(settings).first) == (4, ())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mask": ""}, "all 4 machines are needed without masking; give --mask anywhere"),
        ({"begin_with": 5}, "it can be 1, 2, 3, 4"),
        ({"begin_with": -1}, "begin_with is -1; it must be at least 0"),
        ({"begin_with": 1, "mesh": "pp=2,dp=2"}, "mesh pp=2, dp=2 with 1 workers a machine; it can be 2, 4"),
        ({"begin_with": 1, "mask": "blocks:r=2"}, "1 of 4 replicas, none of which holds shards 2 and 3 (blocks:r=2)"),
        ({"begin_with": 2, "local": 3}, "from 0 to 2, the number of machines with which it begins"),
    ],
)
def test_beginnings_that_cannot_be(script: Path, settings: dict[str, Any], said: str) -> None:
    asked = {"script": str(script), "machines": 4, "mask": "anywhere", "begin_with": 2, **settings}
    assert said in mistake(asked)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pool": -1}, "pool is -1; it must be at least 0"),
        ({"budget": 3}, "budget limits the requests for standbys; say with --pool how many standbys there should be"),
        ({"cool_down": -1.0}, "cool_down is -1.0; it must be from 0 to 3600 seconds"),
        ({"steward": "on"}, "steward is 'on'; write off, tell (what it would do) or act"),
        ({"steward_looks": 0}, "steward_looks is 0; it must be at least 1"),
        ({"provider_command": "'a"}, 'provider_command is "\'a": No closing quotation; quote it as in a shell'),
        ({"provider_command": "/no/such x"}, "provider_command: there is no command /no/such; give its path"),
        ({"machines": 2, "local": 1, "pool": 1}, "machines come from elsewhere and no command brings one"),
    ],
)
def test_a_pool_that_cannot_be_kept(script: Path, settings: dict[str, Any], says: str) -> None:
    assert says in mistake({"script": str(script), **settings})


def test_no_pool_is_kept_unless_asked_for(script: Path) -> None:
    assert make({"script": str(script), "standbys": 2}).settings.steward.pool is None
    steward = steward_of({"script": str(script), "pool": 2, "repair": 2.0, "cool_down": 5})
    assert (steward.pool, steward.cool_down) == (2, 5.0)
    assert steward.returning > 2.0
    assert steward_of({"script": str(script), "pool": 2, "repair": 0.0}).returning == 0.0
    assert is_open(make({"script": str(script), "provider_command": "true"}))


def steward_of(values: dict[str, Any]) -> Any:
    spec = make(values)
    return ControlSpec("job", b"", 1, 1, spec.dimensions, "", spec.settings).steward


def test_extensions_are_named_and_chaos_adds_the_faults(tmp_path: Path, script: Path) -> None:
    assert make({"script": str(script)}).settings.verify.loaded == {}
    assert make({"script": str(script), "chaos": True}).settings.verify.loaded == {FAULTS: ""}
    settings = tmp_path / "job.toml"
    settings.write_text('script = "train.py"\nchaos = true\n[extensions]\nmine = "loud"\n')
    assert make(from_toml(settings)).settings.verify.loaded == {"mine": "loud", FAULTS: ""}
    assert find_spec(FAULTS) is not None
