"""Reading an incident log: correct lines are understood, and each error is one sentence."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from understudy.planning.inputs.fit import fit
from understudy.planning.inputs.incidents import IncidentError, read

HEADER = "timestamp,machine,kind,repair"
GOOD = [
    HEADER,
    "2026-03-01T00:00:00Z,a,gpu,3h",
    "2026-03-01T02:00:00+01:00,b,Network ,45m",
    "1772330400,c,host,",
    "2026-03-02T12:00:00,a,maintenance,90s",
]


def log(*rows: str, header: str = HEADER) -> list[str]:
    return [header, *rows]


def test_dates_and_durations_in_all_ways_of_writing_them() -> None:
    found = read(GOOD)
    assert (found.at - found.at[0]).tolist() == [0.0, 3600.0, 7200.0, 36 * 3600.0]
    assert found.repair.tolist() == [10800.0, 2700.0, -1.0, 90.0]
    assert found.machines == ("a", "b", "c")
    assert found.kinds == ("gpu", "network", "host", "maintenance")
    assert found.domain.tolist() == [-1] * 4
    assert found.warnings == ()


def test_columns_in_any_order_blank_lines_quotes_and_a_byte_order_mark() -> None:
    rows = ["\ufeffkind,domain, Machine,repair,timestamp\r\n", "\r\n", 'gpu,r1,"a, first",1h,100\r\n', " , ,,,\n"]
    found = read(rows)
    assert found.machines == ("a, first",)
    assert found.domains == ("r1",)
    assert found.line.tolist() == [3]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "the log is empty"),
        (["\n", "  \n"], "the log is empty"),
        ([HEADER], "no incident"),
        (["timestamp;machine;kind;repair", "1;a;gpu;"], "line 1: columns are not separated by commas"),
        (["timestamp,machine,kind"], "line 1: column repair is missing"),
        (log(header="timestamp,machine,kind,repair,machine"), "line 1: column machine appears twice"),
        (log(header="timestamp,machine,kind,reapir"), "line 1: unknown column 'reapir'; did you mean repair?"),
        (log(header="timestamp,machine,kind,repair,pod"), "line 1: unknown column 'pod'"),
        (log("1,a,gpu"), "line 2: 3 values in place of 4"),
        (log("1,a,gpu,1h,x"), "line 2: 5 values in place of 4"),
        (log("1,a,gpu,1h", "", "yesterday,b,gpu,1h"), "line 4: timestamp 'yesterday' is no date"),
        (log(",a,gpu,1h"), "line 2: no timestamp"),
        (log("-5,a,gpu,1h"), "line 2: timestamp '-5' is no date after 1970"),
        (log("nan,a,gpu,1h"), "line 2: timestamp 'nan'"),
        (log("inf,a,gpu,1h"), "line 2: timestamp 'inf'"),
        (log("1772330400000,a,gpu,1h"), "is it in milliseconds"),
        (log("1,a,gpu,-3h"), "line 2: repair '-3h' is negative"),
        (log("1,a,gpu,٣h"), "is no duration"),
        (log("1,a,gpu,nan"), "line 2: repair 'nan' is no duration"),
        (log("1,a,gpu,3 fortnights"), "is no duration; write 3h"),
        (log("1,a,gpu,9000d"), "more than ten years"),
        (log("1,a,gpu,1e200"), "more than ten years"),
        (log("1,a,gpu,1e999"), "is no duration"),
        (log("1,,gpu,1h"), "line 2: no machine"),
        (log("1,a, ,1h"), "line 2: no kind"),
        (log("1,a,gpu,1h", "2026-03-01,b,gpu,1h"), "lines 2 and 3 are more than fifty years apart"),
        (log("1,a\0b,gpu,1h"), "line 2: binary data"),
        (log('1,"a,gpu,1h', "2,b,gpu,1h", "3,c,gpu,1h"), "line 2: a quote is opened here and never closed"),
        (log('1,"a,gpu,1h', '2,"b",gpu,1h'), "line 2: a quote is opened here and never closed"),
        (log("1,a,gpu,1h", '"2\n', '\n",b,gpu'), "line 3: 3 values in place of 4"),
        (log('1,"a"b,gpu,1h'), "line 2: ',' expected after '\"'; save the log as plain CSV"),
        (log("1," + "a" * 200_000 + ",gpu,1h"), "line 2: "),
    ],
)
def test_what_is_wrong_is_said_with_its_line(lines: list[str], words: str) -> None:
    with pytest.raises(IncidentError) as caught:
        read(lines)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_bytes_that_are_no_text_are_said_with_their_line() -> None:
    lines = log("1,ä,gpu,1h", b"2,\xff,gpu,1h".decode(errors="surrogateescape"))
    with pytest.raises(IncidentError, match="line 3: not UTF-8 text"):
        read(lines)


def test_dates_in_the_wrong_order_are_sorted_and_told_of() -> None:
    found = read(log("300,a,gpu,1s", "100,b,gpu,1s", "200,c,gpu,1s"))
    assert found.at.tolist() == [100, 200, 300]
    assert found.line.tolist() == [3, 4, 2]
    (said,) = found.warnings
    assert said == "line 3 is earlier than the line before, once in this log: sorted by time"


def test_the_same_row_twice_counts_once() -> None:
    found = read(log("100,a,gpu,1s", "200,a,gpu,1s", "100,a,gpu,1s", "100,b,gpu,1s"))
    assert len(found) == 3
    assert "line 4 repeats another line" in found.warnings[1]


def test_a_machine_that_fails_while_it_is_repaired_is_told_of_with_both_lines() -> None:
    found = read(log("100,a,gpu,1h", "200,b,gpu,1h", "300,a,host,1h", "9000,b,gpu,1h", "310,a,straggler,1h"))
    assert len([said for said in found.warnings if "repair" in said]) == 1
    assert any(said.startswith("line 4: 'a' is interrupted") and "(line 2)" in said for said in found.warnings)


def test_many_overlaps_are_not_told_one_by_one() -> None:
    found = read(log(*(f"{100 + number},a,gpu,1h" for number in range(30))))
    assert len(found.warnings) == 6
    assert found.warnings[-1].startswith("and 24 more")


def test_a_kind_that_is_nearly_maintenance_is_asked_about() -> None:
    (said,) = read(log("1,a,maintainance,1h", "5000,b,storage,1h")).warnings
    assert "did you mean maintenance?" in said


words = st.text(alphabet=st.sampled_from("0123456789-:TZ.,;\"' \n\r\taeghinmprstu_\0\ud800é"), max_size=40)
cells = st.one_of(
    words, st.sampled_from(["1h", "1e400", "-0", "nan", "2026-03-01", "9999-12-31T23:59:59+23:59", "inf"])
)
rows = st.lists(cells, min_size=3, max_size=6).map(",".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(st.text(max_size=60), max_size=6), st.lists(rows, max_size=8).map(lambda r: [HEADER, *r])))
@example([HEADER, "0001-01-01,a,gpu,1h"])
@example([HEADER, "0,a,gpu,0", "0,a,gpu,0"])
def test_any_text_is_understood_or_refused_in_a_sentence(lines: list[str]) -> None:
    try:
        found = read(lines)
        fitted = fit(found, max(1, len(found.machines)))
    except IncidentError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    f = fitted.failures
    numbers = (f.mtbf, f.shape, f.together, f.maintenance, f.straggling, f.noticed, fitted.repair.mean, fitted.window)
    assert np.isfinite(numbers).all()
    assert f.mtbf > 0
    assert fitted.repair.mean >= 0


def test_rows_are_read_and_fitted_in_bounded_memory() -> None:

    def lines() -> Iterator[str]:
        yield HEADER
        for number in range(100_000):
            date = f"2026-03-{1 + number // 5000:02d}T{number // 208 % 24:02d}:{number % 60:02d}:00Z"
            yield f"{date},m{number % 997},gpu,5m"

    tracemalloc.start()
    fitted = fit(read(lines()), 1000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fitted.failures.mtbf > 0
    assert most < 45e6
