# Everything runs from .venv, which is made on first use: Python, make and git are all it takes.
#
# pip's own environment variables apply. On Linux the default torch wheel brings gigabytes of CUDA;
# PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS can offer a CPU-only wheel of the pinned version instead.

PYTHON ?= python3
PYTEST_ARGS ?=
# Many tests wait most of the time, for deadlines and for windows of quiet: three keep two cores busy.
PYTEST_JOBS ?= 3
PYTEST8 ?= 8.3.5
CORPUS_ARGS ?=
LATENT_ARGS ?=
FOUND_ARGS ?=
HAZARDS_ARGS ?=
FLIGHT_ARGS ?=
BENCH_ARGS ?=
REV ?=
SINCE_ARGS ?=
FUZZ_INPUTS ?= 100000
MUTANTS ?= 400
MUTANTS_SEED ?= 1

BIN := .venv/bin
READY := .venv/ready
# Beside the pinned one: the tests of the fixes run with both.
ORBAX_NEWEST := orbax-checkpoint==0.12.8

# The suite starts hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help demo worlds test test-all suite test-pytest8 extensions test-python lint bench bench-quick bench-since bench-faults soak fuzz mutants corpus corpus-libraries latent latent-by-hand flight found found-sweep hazards claims samples made docs dist wheel-check smoke clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  PYTHON=python3.12 picks the interpreter that .venv is made with."
	@echo "  PYTEST_JOBS=0 runs the tests of make test one after the other; the default is 3 at a time."
	@echo "  PYTEST8=8.4.2 picks the version of make test-pytest8; the default is 8.3.5."
	@echo "  PYTEST_ARGS='-x -k gloo' is handed to pytest by make test, test-all and test-python."
	@echo "  PYTHON_SUITE=sid picks the Debian release of make test-python: trixie has Python 3.13, sid 3.14."
	@echo "  BENCH_ARGS='--only floor overhead --suite junit.xml' picks what make bench measures."
	@echo "  SINCE_ARGS='--quick --only none gloo' picks what make bench-since compares."
	@echo "  CORPUS_ARGS='--load 2' keeps two processes computing beside make corpus."
	@echo "  CORPUS_ARGS='--only innocent_ --jobs 4 --rounds 20' looks for false accusations again and again."
	@echo
	@"$(PYTHON)" tests/shared/tiers.py

# The stamp is written last, so a set-up that was interrupted starts over. One pip call for all:
# the pins of the group must bind the open ranges of the extras, or pip takes the newest torch.
$(READY): pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "error: there is no '$(PYTHON)' on the PATH. Name a Python: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed, and '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1)." \
	    "Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@rm -f $@
	@echo "== Making .venv, once: downloads about 2.3 GB, most of it torch and jax, in two to four minutes"
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .venv/orbax-newest/site-packages \
	  $(ORBAX_NEWEST)
	@touch $@

# The examples run as they do for a user, who has the plugin and what it depends on: without the
# neighbours that .venv holds to be tested, some of which warn, shuffle or start threads unasked.
DEMO_PYTEST := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 ../../$(BIN)/python -m pytest -p timeout -p multihost_hangs

demo: $(READY) ## Run the examples in a minute: a restore on four ranks, then a hang that is found
	@echo "== A checkpoint is restored by four ranks. This passes."
	cd conftest_examples/orbax_restore && $(DEMO_PYTEST) --ranks 4
	@echo
	@echo "== Now a test that hangs, so it must fail."
	@cd conftest_examples/first_hang && status=0; \
	$(DEMO_PYTEST) --ranks 4 || status=$$?; \
	if [ $$status -ne 1 ]; then \
	  echo "error: the example of a hang must fail with exit code 1, but pytest ended with $$status" >&2; exit 1; \
	elif ! grep -Eq '"outcome": ?"hung"' .pytest_multihost/verdicts.jsonl; then \
	  echo "error: the example of a hang failed as it must, but for another reason than a hang" >&2; exit 1; \
	fi
	@echo
	@echo "== This failure was the point: the test hung, was found to hang and was ended. The demo is complete."

# What the workflow runs for each number of ranks and each backend: does a world come up at all?
RANKS ?= 2
BACKEND ?= gloo

worlds: $(READY) ## Run one small world of RANKS=2 ranks over BACKEND=gloo
	cd conftest_examples/github_actions && \
	$(DEMO_PYTEST) --ranks $(RANKS) --multihost-backend $(BACKEND) --junitxml=../../junit.xml

RUN_TESTS = $(BIN)/python -m pytest -n $(PYTEST_JOBS) --dist worksteal

test: lint ## Lint and the fast tier of the suite: about six minutes on two cores
	$(RUN_TESTS) -m fast $(PYTEST_ARGS)

test-all: lint ## Lint and the whole suite: about half an hour on two cores
	@$(MAKE) --no-print-directory suite

# make test-pytest8 runs it with another BIN.
suite: $(READY)
	$(RUN_TESTS) $(PYTEST_ARGS)

extensions: $(READY) ## Delete each extension from a copy of the package, and run worlds with the rest
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest tests/house/test_deleted_extensions.py -n $(PYTEST_JOBS) $(PYTEST_ARGS)

# A root made by debootstrap, for which it takes root rights; it is made on first use and then kept.
PYTHON_ROOT ?=
PYTHON_SUITE ?= trixie

test-python: ## Run the tests with another Python, in the Debian root PYTHON_ROOT=/var/tmp/trixie
	@[ -n "$(PYTHON_ROOT)" ] || { \
	  echo "error: name a directory for the root: make test-python PYTHON_ROOT=/var/tmp/trixie" >&2; exit 1; }
	docker/python_root.sh make "$(PYTHON_ROOT)" "$(PYTHON_SUITE)"
	docker/python_root.sh run "$(PYTHON_ROOT)" \
	  python -m pytest -n $(PYTEST_JOBS) --dist worksteal $(PYTEST_ARGS)

lint: $(READY) ## Check style, format, types and the floors of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/proselint check --config docs/proselint.json README.md ARCHITECTURE.md docs/*.md docs/*/*.md

# Peers lie beside .venv's packages, not among them: pytest would load two of them unasked, and what
# pip made of their requirements could move what is pinned. Open MPI is the system's: on Debian
# apt-get install openmpi-bin.
.venv/ready-bench: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .venv/bench/site-packages \
	  --group bench
	@touch $@

bench: .venv/ready-bench ## Measure it beside what people use today: twenty minutes on two quiet cores
	$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

bench-quick: .venv/ready-bench ## The shortest of it that says something: two minutes
	$(BIN)/python benchmarks/bench.py --quick $(BENCH_ARGS)

# The requirements of REV are not installed: both run with the libraries of .venv.
bench-since: $(READY) ## What costs more than at REV=v0.2.0? Half an hour on two quiet cores
	@[ -n "$(REV)" ] || { \
	  echo "error: name the revision to compare with: make bench-since REV=v0.2.0" >&2; exit 1; }
	$(BIN)/python benchmarks/since.py "$(REV)" $(SINCE_ARGS)

soak: $(READY) ## Kill runs at random moments, and run 1000 worlds in one run
	$(BIN)/python benchmarks/soak.py

fuzz: $(READY) ## Fuzz what reads connections, dumps, sweep.json and accept files: FUZZ_INPUTS=100000
	$(BIN)/python benchmarks/fuzz.py --inputs $(FUZZ_INPUTS)

mutants: .venv/ready-mutants ## Does a test fail when the code that judges is wrong? Fifteen minutes; MUTANTS=all
	$(BIN)/python benchmarks/mutants.py --count $(MUTANTS) --seed $(MUTANTS_SEED) --jobs $(PYTEST_JOBS)

.venv/ready-mutants: $(READY)
	$(BIN)/python -m pip install --quiet --group mutants
	@touch $@

bench-faults: $(READY) ## Hold what faults do to real libraries against what was asked for
	$(BIN)/python benchmarks/faults.py

corpus: $(READY) ## Score the verdicts on programs that hang, and on innocents
	$(BIN)/python benchmarks/corpus.py $(CORPUS_ARGS)

# Among what these libraries require are plugins of pytest and other versions than the pinned ones.
.venv-libraries/ready: pyproject.toml
	"$(PYTHON)" -m venv .venv-libraries
	.venv-libraries/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venv-libraries/bin/python -m pip install --quiet --editable '.[all]' --group test --group libraries
	@touch $@

corpus-libraries: .venv-libraries/ready ## The same on programs of accelerate, Lightning, DeepSpeed, orbax, ...
	.venv-libraries/bin/python benchmarks/corpus.py --libraries $(CORPUS_ARGS)

# An environment for each version: .venv again, by hard links, with another pytest, a pytest-asyncio
# that accepts it, and the plugin for subtests, which pytest has since version 9. The packages must
# lie in its own site-packages, because frames and files are told apart by these folders. pip, Python
# and sed replace files and never write into one: .venv stays as it is.
PYTEST8_VENV := .venv-pytest8/$(PYTEST8)
PYTEST8_READY := $(PYTEST8_VENV)/ready-pytest8

$(PYTEST8_READY): $(READY)
	@echo "== Making $(PYTEST8_VENV): .venv with pytest $(PYTEST8)"
	@rm -rf $(PYTEST8_VENV)
	@mkdir -p .venv-pytest8
	@cp --archive --link .venv $(PYTEST8_VENV)
	@grep --directories=skip --files-with-matches --binary-files=without-match '^#!.*/.venv/bin/python' $(PYTEST8_VENV)/bin/* \
	  | xargs sed --in-place '1s|/.venv/bin/|/$(PYTEST8_VENV)/bin/|'
	$(PYTEST8_VENV)/bin/python -m pip install --quiet --no-deps \
	  pytest==$(PYTEST8) pytest-asyncio==1.1.0 pytest-subtests==0.15.0
	@touch $@

test-pytest8: $(PYTEST8_READY) ## The whole test suite on PYTEST8=8.3.5, the oldest pytest that is supported
	@$(MAKE) --no-print-directory suite BIN=$(PYTEST8_VENV)/bin

latent: $(READY) ## Score what sweeps find in programs that pass and hide a weakness: LATENT_ARGS='--budget 30'
	$(BIN)/python benchmarks/latent.py $(LATENT_ARGS)

flight: $(READY) ## Who is named from flight-recorder dumps, by us and by torch: FLIGHT_ARGS='--only groups'
	$(BIN)/python benchmarks/flight.py $(FLIGHT_ARGS)

latent-by-hand: $(READY) ## Does each latent weakness show under the fault that is written beside it?
	$(BIN)/python benchmarks/latent.py --by-hand $(LATENT_ARGS)

found: .venv-libraries/ready ## Repeat each weakness of docs/found 20 times: FOUND_ARGS='--only orbax'
	.venv-libraries/bin/python benchmarks/reproducers.py $(FOUND_ARGS)
	.venv-libraries/bin/python benchmarks/found.py $(FOUND_ARGS)

found-sweep: .venv-libraries/ready ## Sweep every program of tests/found: FOUND_ARGS='--only background'
	.venv-libraries/bin/python benchmarks/found.py --sweep $(FOUND_ARGS)

hazards: $(READY) ## Score what passing runs show of hangs elsewhere: HAZARDS_ARGS='--innocent tests/corpus'
	$(BIN)/python benchmarks/hazards.py $(HAZARDS_ARGS)

claims: $(READY) ## Print which tests show what README promises
	$(BIN)/python tests/shared/claims.py

samples: $(READY) ## Make the outputs that pages of the guide show from new runs
	$(BIN)/python docs/samples.py

made: $(READY) ## Make the parts of the guide that the code knows: options, commands, schemas, ...
	$(BIN)/python docs/made.py

# Pictures of hangs are made from runs, but only those whose programs have changed.
docs: .venv/ready-docs ## Build the guide into site/
	$(BIN)/python docs/pictures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/ready-docs: $(READY)
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

dist: .venv/ready-release ## Build sdist and wheel into dist/, and check what PyPI would refuse
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

.venv/ready-release: $(READY)
	$(BIN)/python -m pip install --quiet --group release
	@touch $@

wheel-check: dist ## Install the wheel into an empty environment and run the README's example there
	$(BIN)/python conftest_examples/readme_from_wheel.py dist/*.whl torch==2.13.0

# The wheel is built in a folder of its own, so that dist/ keeps what is to be published.
smoke: $(READY) ## Install the wheel without neighbour plugins, and run pairs of tests there
	@rm -rf build/smoke && mkdir -p build/smoke
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/smoke .
	$(BIN)/python conftest_examples/pairs_from_wheel.py build/smoke/*.whl torch==2.13.0

clean: ## Remove .venv, .venv-* and all that builds, tools and runs leave behind
	rm -rf .venv .venv-libraries .venv-pytest8 build dist site *.egg-info junit.xml .coverage .coverage.* .hypothesis
	rm -rf .import_linter_cache .mutants .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o \
	  \( -name __pycache__ -o -name .pytest_cache -o -name .pytest_multihost \) -prune -exec rm -rf {} +
