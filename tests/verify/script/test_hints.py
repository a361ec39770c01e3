"""Hints from the source alone."""

from __future__ import annotations

import pytest

from understudy.verify.script.hints import Hint, hints


@pytest.mark.parametrize(
    ("source", "kind", "variable"),
    [
        ("import time\nt = time.time()", "clock", "t"),
        ("from time import perf_counter as now\ndef f():\n    return now()", "clock", ""),
        ("import datetime\nd = datetime.datetime.now()", "clock", "d"),
        ("from datetime import datetime\nd = datetime.now().isoformat()", "clock", "d"),
        ("import random\nr = random.Random()", "entropy", "r"),
        ("import numpy as np\nr = np.random.default_rng()", "entropy", "r"),
        ("import torch\ng = torch.Generator()\ng.seed()", "entropy", ""),
        ("import torch\ntorch.seed()", "entropy", ""),
        ("import os\nx = os.urandom(3)", "entropy", "x"),
        ("import uuid\nx = uuid.uuid4()", "entropy", "x"),
        ("import random\ndef train(job):\n    random.shuffle(files)", "entropy", ""),
        ("names = list(set(words))", "order", "names"),
        ("for name in {'a', 'b'}:\n    pass", "order", ""),
        ("names = set(words)\nfor name in names:\n    pass", "order", ""),
        ("names = {'a', 'b'}\nfor number, name in enumerate(names):\n    pass", "order", ""),
        ("x = [n for n in set(words)]", "order", ""),
        ("x = hash('a')", "order", "x"),
        ("import os\nRANK = int(os.environ['RANK'])", "rank", "RANK"),
        ("import os\nif True:\n    RANK = os.environ.get('RANK', 0)", "rank", "RANK"),
        ("from os import getenv\nclass A:\n    rank = getenv('LOCAL_RANK')", "rank", "rank"),
        ("import torch.distributed as dist\nRANK = dist.get_rank()", "rank", "RANK"),
        ("import torch.distributed as dist\nif job.role == 0:\n    dist.barrier()", "uneven", "job.role == 0"),
    ],
)
def test_found(source: str, kind: str, variable: str) -> None:
    (hint,) = hints(source)
    assert (hint.kind, hint.variable) == (kind, variable)


@pytest.mark.parametrize(
    "source",
    [
        "import random\nr = random.Random(3)",
        "import numpy as np\nr = np.random.default_rng(seed=3)",
        "import torch\ng = torch.Generator().manual_seed(3)",
        "import random\nfor step in job.steps(3):\n    random.random()",
        "import os\ndef f():\n    return int(os.environ['RANK'])",
        "import os\nHOME = os.environ['HOME']",
        "import time\ntime.sleep(1)",
        "for name in sorted(set(words)):\n    pass",
        "time.time()",
        "import torch.distributed as dist\nif step.index == 0:\n    dist.barrier()",
        "import torch.distributed as dist\nif job.role == 0:\n    print(1)",
        "def (",
    ],
)
def test_nothing_to_say(source: str) -> None:
    assert hints(source) == []


def test_the_line_and_what_is_written_there() -> None:
    assert hints("import time\n\nt = 2 * time.time()") == [Hint("clock", 3, "time.time()", "t")]
