# Two commands matter: `make quickstart` and `make test`. Needs Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin
RUN := runs/quickstart
SEED ?= 0
ALGORITHM ?= cpgd
FLAGS ?=

.PHONY: help install quickstart quickstart-vl test parity slow lint lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

.venv/.installed: requirements.lock setup.py
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; say make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

install: .venv/.installed  ## install the tested versions into .venv

quickstart: .venv/.installed  ## warm start, then RL on arithmetic (SEED=1 ALGORITHM=grpo FLAGS="--config.optim.lr=3e-4")
	$(BIN)/python -m experiments.train --config=configs/quickstart_warmstart.py \
	  --workdir=$(RUN)/warmstart_seed$(SEED) --config.seed=$(SEED)
	$(BIN)/python -m experiments.train --config=configs/quickstart.py \
	  --config.model.init_from=$(RUN)/warmstart_seed$(SEED) --config.seed=$(SEED) \
	  --config.algorithm=$(ALGORITHM) --workdir=$(RUN)/$(ALGORITHM)_seed$(SEED) $(FLAGS)

quickstart-vl: .venv/.installed  ## the same on pictures, with a tiny Qwen2.5-VL (SEED=1)
	$(BIN)/python -m experiments.train --config=configs/quickstart_vl_warmstart.py \
	  --workdir=$(RUN)_vl/warmstart_seed$(SEED) --config.seed=$(SEED)
	$(BIN)/python -m experiments.train --config=configs/quickstart_vl.py \
	  --config.model.init_from=$(RUN)_vl/warmstart_seed$(SEED) --config.seed=$(SEED) \
	  --config.algorithm=$(ALGORITHM) --workdir=$(RUN)_vl/$(ALGORITHM)_seed$(SEED) $(FLAGS)

test: .venv/.installed  ## the fast tests, without torch
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/python -m pytest -n 2 -m "not slow and not parity"

parity: .venv/.installed  ## the tests against transformers in torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pytest -n 2 -m "parity and not slow"

slow: .venv/.installed  ## the slower tests
	$(BIN)/python -m pytest -n 2 -m slow

lint: .venv/.installed  ## format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## write requirements.lock anew from the ranges of setup.py, in a fresh environment
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	.venv-lock/bin/python -m pip freeze --exclude-editable > requirements.lock
	rm -rf .venv-lock

clean:  ## remove the environment, not the runs
	rm -rf .venv
