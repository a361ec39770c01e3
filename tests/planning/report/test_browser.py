"""A real browser without a network opens the page and draws every plot."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bench.made import everything
from tests.planning.plans import planned
from understudy.planning.inputs.assume import PlanRequest
from understudy.planning.outcome import Mean
from understudy.planning.report.page import page
from understudy.planning.report.plan_data import Simulated
from understudy.planning.report.plots import COLOURS, WORST
from understudy_bench.report.page import page_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PLOTS = ("scale", "waste", "landscape", "breakdown", "sensitivity", "simulated")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here; make browser installs it"),
    pytest.mark.long,
]


class Drawn(HTMLParser):
    """How many drawings each section has."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.drawings: dict[str, int] = {}
        self._section = ""
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "section":
            self._section = found.get("id") or ""
        if tag == "svg" and "main-svg" in (found.get("class") or ""):
            self.drawings[self._section] = self.drawings.get(self._section, 0) + 1


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    file = tmp_path_factory.mktemp("report") / "plan.html"
    plan = planned(PlanRequest(gpus=16_384))
    found = [Simulated(each.strategy.name, _around(each.inflation), each.inflation) for each in plan.options]
    file.write_text(page(plan, "Made today.", found), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    file = tmp_path_factory.mktemp("measured") / "report.html"
    file.write_text(page_of(everything()), encoding="utf-8")
    return file


def _around(value: float) -> Mean:
    return Mean(value, 0.99 * value, 1.01 * value)


def browse(report: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The browser with this page, no name resolved, no proxy that answers; ends by itself."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--proxy-server=127.0.0.1:9",
        f"--user-data-dir={report.parent / 'profile'}",
        "--virtual-time-budget=10000",
        *options,
        report.as_uri(),
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert found.returncode == 0, found.stderr
    return found


def test_every_plot_is_drawn_and_nothing_is_complained_about(report: Path) -> None:
    found = browse(report, "--window-size=1200,4000", "--dump-dom")
    drawings = Drawn(found.stdout).drawings
    assert set(drawings) == set(PLOTS)
    assert "CONSOLE" not in found.stderr, found.stderr


def test_every_plot_of_measurements_is_drawn(measured: Path) -> None:
    found = browse(measured, "--window-size=1200,6000", "--dump-dom")
    plots = {"downtime", "dip", "breakdown", "memory", "collectives", "setup", "rebalancing"}
    assert set(Drawn(found.stdout).drawings) == plots
    assert "CONSOLE" not in found.stderr, found.stderr


@pytest.mark.parametrize(
    ("scheme", "ground"), [("1", (0xFB, 0xFB, 0xFA)), ("0", (0x15, 0x19, 0x1F))], ids=["light", "dark"]
)
def test_one_sees_the_plots_in_light_and_in_dark(report: Path, scheme: str, ground: tuple[int, int, int]) -> None:
    shot = report.with_name(f"page-{scheme}.png")
    browse(
        report,
        "--window-size=1200,3300",
        "--force-device-scale-factor=0.5",
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--screenshot={shot}",
    )
    pixels = decoded(shot.read_bytes())
    colours = {tuple(map(int, colour)) for colour in np.unique(pixels.reshape(-1, 3), axis=0)}
    assert len(colours) > 500
    assert ground in colours
    for name in (COLOURS["mask-and-refill"], COLOURS["checkpoint"], WORST):
        assert tuple(bytes.fromhex(name[1:])) in colours, name


def decoded(png: bytes) -> NDArray[np.uint8]:
    """Rows of pixels (red, green, blue) of an 8-bit PNG that is not interlaced."""
    at, packed, width, height, kind = 8, b"", 0, 0, 0
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + length]
        if name == b"IHDR":
            width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0)
        elif name == b"IDAT":
            packed += body
        at += 12 + length
    channels = {2: 3, 6: 4}[kind]
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    found = np.zeros((height + 1, width, channels), np.uint8)
    for number, row in enumerate(rows):
        line = row[1:].reshape(width, channels)
        found[number + 1] = _unfiltered(int(row[0]), line, found[number])
    return found[1:, :, :3]


def _unfiltered(method: int, line: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if method == 0:
        return line
    if method == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if method == 2:
        return line + above
    width, made, up = line.shape[1], [0] * line.shape[1], [0] * line.shape[1] + above.ravel().tolist()
    for place, value in enumerate(line.ravel().tolist()):
        left, over = made[place], up[place + width]
        made.append((value + (_paeth(left, over, up[place]) if method == 4 else (left + over) // 2)) & 255)
    return np.asarray(made[width:], np.uint8).reshape(line.shape)


def _paeth(left: int, above: int, corner: int) -> int:
    to_left, to_above, to_corner = abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)
    if to_left <= to_above and to_left <= to_corner:
        return left
    return above if to_above <= to_corner else corner
