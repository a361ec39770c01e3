from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

from understudy_bench.scripts.gate import Gate


def test_without_an_address_the_gate_is_open() -> None:
    gate = Gate("", "plain", 0)
    for _ in range(3):
        assert gate.passes()
        gate.passed()


def test_steps_pass_in_blocks_until_the_benchmark_goes(tmp_path: Path) -> None:
    passed: list[int] = []

    def train() -> None:
        gate = Gate(str(tmp_path / "gate"), "plain", 7)
        while gate.passes():
            passed.append(len(passed))
            gate.passed()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "gate"))
        server.listen()
        worker = Thread(target=train)
        worker.start()
        sock, _ = server.accept()
    with Connection(sock.detach()) as benchmark:
        assert benchmark.recv() == ("plain", 7)
        for steps in (3, 2):
            benchmark.send(steps)
            times = benchmark.recv()
            assert len(times) == steps
            assert min(times) >= 0
    worker.join(10)
    assert not worker.is_alive()
    assert len(passed) == 5
