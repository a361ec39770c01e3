VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help demo test soak conformance compat check browser bench figures chaos simgrid docs wheel recording format clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.stamp ## replace a machine of a running job and watch it
	@$(BIN)/python examples/demo.py

# one more than there are processors, since jobs mostly wait
PYTEST = $(BIN)/python -m pytest -n $$(($$(nproc) < 4 ? $$(nproc) + 1 : 4)) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.stamp ## run the tests
	$(PYTEST) tests

soak: $(VENV)/.stamp ## run the long tests too
	$(PYTEST) -m "" tests

conformance: $(VENV)/.stamp ## run PyTorch's own distributed tests over our process group and over gloo; CONFORMANCE=--json
	@$(BIN)/python -m tools.conformance $(CONFORMANCE)

TORCH ?= 2.15.0
COMPAT := .venv-torch-$(TORCH)

compat: $(COMPAT)/.stamp ## run the tests with another torch: TORCH=2.14.1 TESTS="tests/comm -k ddp"; each takes 5 GB
	$(subst $(BIN),$(COMPAT)/bin,$(PYTEST)) $(or $(TESTS),tests)

check: $(VENV)/.stamp ## check lint, format, types, layers and the rules of the house
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_house.py

browser: $(VENV)/.stamp ## check a report in a real browser; installs one if there is none
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	    command -v apt-get >/dev/null || { echo "no chromium and no apt-get here: install chromium yourself" >&2; exit 1; }; \
	    sudo=$$([ "$$(id -u)" -eq 0 ] || echo sudo); \
	    $$sudo apt-get update && $$sudo apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }
	$(BIN)/python -m pytest -q -m "" tests/planning/report/test_browser.py

bench: $(VENV)/.stamp ## run all benchmarks, two hours; BENCH=--quick: ten minutes; writes a report to bench/results/
	@$(BIN)/python -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("torchft") is None)' || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' || \
	    echo "make bench: torchft cannot be installed here; the report will show it as missing" >&2
	$(BIN)/understudy bench all $(BENCH)

figures: $(VENV)/.stamp ## write the figures of README and docs again from committed results, and draw the pictures
	$(BIN)/understudy bench report bench/results/reference --png docs/images --readme README.md docs/benchmarks.md docs/scaling.md docs/standby.md docs/planning.md

SEED ?= 1

chaos: $(VENV)/.stamp ## cause 80 faults of all usual kinds in four jobs; SEED=n for others
	$(BIN)/understudy chaos run --seed $(SEED) --faults 20 --every 1s --recover-within 120s \
	    --machines 3 --standbys 1 --mask anywhere --deterministic \
	    examples/gpt_ddp.py --width 64 --layers 2 --micro 2 --batch 8
	$(BIN)/understudy chaos run --seed $(SEED) --faults 20 --every 1s --recover-within 120s \
	    --machines 3 --standbys 2 examples/gpt_ddp.py --width 64 --layers 2
	$(BIN)/understudy chaos run --seed $(SEED) --faults 20 --every 1s --recover-within 120s \
	    --machines 2 --nproc 2 --standbys 2 --mesh dp=2,pp=2,tp=1 \
	    --checkpoint runs/chaos --checkpoint-every 5 examples/gpt_3d.py --width 64
	$(BIN)/understudy chaos run --seed $(SEED) --faults 20 --every 1s --recover-within 120s \
	    --machines 4 --nproc 2 --standbys 2 --mesh dp=2,pp=2,tp=2 \
	    --checkpoint runs/chaos --checkpoint-every 5 examples/gpt_3d.py --width 64

SUDO = $(shell test "$$(id -u)" = 0 || echo sudo)
APT = $(SUDO) apt-get install -y --no-install-recommends python3-simgrid

simgrid: $(VENV)/.stamp ## install SimGrid (Debian package) and compare the simulators
	@/usr/bin/python3 -c 'import simgrid' 2>/dev/null || { \
	    command -v apt-get >/dev/null || { \
	        echo "make simgrid: there is no apt-get here; install SimGrid's Python module for /usr/bin/python3" >&2; \
	        exit 1; }; \
	    $(APT) || { $(SUDO) apt-get update && $(APT); }; }
	$(BIN)/python -m pytest -m "" tests/planning/simgrid

docs: $(VENV)/.stamp ## write docs/api.md again, from docstrings, routes and argument parsers
	$(BIN)/python -m tools.reference

wheel: $(VENV)/.stamp ## build dist/*.whl, and try it in an environment of its own
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check . --no-deps -w dist
	$(BIN)/python -m pytest -q -m "" tests/test_wheel.py

recording: $(VENV)/.stamp ## record the session of the README's first picture
	$(BIN)/python -m tools.recording

format: $(VENV)/.stamp ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove the environment, caches and results
	rm -rf $(VENV) .venv-torch-* build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	[ ! -d bench/results ] || find bench/results -mindepth 1 -maxdepth 1 ! -name reference -exec rm -rf {} +
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp: pyproject.toml setup.py constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(COMPAT)/.stamp: pyproject.toml setup.py constraints.txt
	@test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	@echo "setting up $(COMPAT) (once)"
	@{ grep -v '^torch==' constraints.txt; echo 'torch==$(TORCH)'; } > $(COMPAT)/constraints.txt
	@$(COMPAT)/bin/python -m pip install --quiet --disable-pip-version-check -c $(COMPAT)/constraints.txt -e '.[test,report]'
	@touch $@
