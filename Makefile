# Tianzhou. `make run` starts the system, `make test` runs the checks and the tests; both set up what they need.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Building the kernel needs this Rust or newer; without it everything runs in pure Python.
RUST_AT_LEAST := 1.85
# Every pip that runs below this one installs the versions named there, so a release of a tool or a library
# changes nothing here until `make versions` takes it in.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help setup run demo-spark test test-all check unit fuzz storm bench bench-broker bench-quick bench-spark spark-full docs wheels versions clean

help: ## show the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# -- setting up ---------------------------------------------------------------------------------------

setup: $(VENV)/.installed kernel-if-possible ## create .venv with everything, the compiled kernel included

# Debian ships Python without ensurepip; as root the missing package is installed, otherwise named.
$(VENV)/.made:
	@rm -rf $(VENV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tianzhou needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "setup: installing python3-venv, which this Python lacks"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null; \
	  else \
	    echo "this Python has no venv: install the package python3-venv and run make again" >&2; exit 1; \
	  fi; \
	fi
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	@echo "setup: installing Tianzhou and what its tests need"
	@$(BIN)/pip install -q -e '.[dev]'
	@touch $@

# Spark is large, so only what needs it brings it.
$(VENV)/.spark: $(VENV)/.installed
	@echo "setup: installing Spark"
	@$(BIN)/pip install -q -e '.[spark]'
	@touch $@

KERNEL_SOURCES := $(wildcard kernel/Cargo.toml kernel/Cargo.lock kernel/pyproject.toml) $(shell find kernel/src -name "*.rs")

HAS_RUST = command -v cargo >/dev/null && $(BIN)/python tools/rust_at_least.py $(RUST_AT_LEAST)

.PHONY: rust-if-possible kernel-if-possible
kernel-if-possible: rust-if-possible
	@if $(HAS_RUST); then $(MAKE) -s --no-print-directory $(VENV)/.kernel; fi

# Root on Debian may install packages; nothing is installed for another user or on another system.
rust-if-possible: $(VENV)/.installed
	@if $(HAS_RUST); then exit 0; fi; \
	case "$$(. /etc/os-release 2>/dev/null && echo "$$ID $$VERSION_ID")" in \
	  "debian 12") packages="cargo-web rustc-web" ;; \
	  "debian 13") packages="cargo" ;; \
	esac; \
	if [ -n "$$packages" ] && [ "$$(id -u)" = 0 ]; then \
	  echo "setup: installing $$packages to build the kernel"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$packages; } >/dev/null 2>&1; \
	fi; \
	$(HAS_RUST) || echo "setup: pure Python is used, at about a tenth of the speed: the kernel needs Rust $(RUST_AT_LEAST) or newer" \
	  "(Debian 12: cargo-web and rustc-web, Debian 13: cargo, elsewhere rustup)"

$(VENV)/.kernel: $(VENV)/.installed $(KERNEL_SOURCES)
	@echo "setup: building the kernel"
	@$(BIN)/pip install -q --force-reinstall --no-deps ./kernel
	@touch $@

wheels: setup ## build the wheels into dist/: tianzhou in pure Python, and the kernel for all Pythons from 3.11 on (abi3)
	@$(HAS_RUST) || { echo "wheels: the kernel needs Rust $(RUST_AT_LEAST) or newer; run make setup as root, or install it" >&2; exit 1; }
	@rm -rf dist && $(BIN)/pip install -q maturin
	@$(BIN)/pip wheel -q --no-deps -w dist .
	@$(BIN)/maturin build -q --release --locked -m kernel/Cargo.toml -o dist
	@ls dist

# -- running and testing ------------------------------------------------------------------------------

run: setup ## start nameserver and broker, and show messages flowing; Ctrl-C stops
	@exec $(BIN)/tianzhou up --demo

demo-spark: setup $(VENV)/.spark ## the same with Spark installed: it ends with a Spark job over the messages
	@exec $(BIN)/tianzhou up --demo

# Most tests wait: for delays of seconds, for JVMs, for Spark. So the checks and the groups of tests below run five at a
# time. Groups with Spark have priority: Spark gives up a Python process that has not started within ten seconds. The
# output of one group is shown as it runs, that of the others afterwards; failures and the slowest tests are listed at the end.
TESTS_clients := $(wildcard tests/apache/test_cl*.py)
TESTS_both    := $(wildcard tests/apache/test_spark*.py)  # Spark and Apache
TESTS_kinds   := $(wildcard tests/apache/test_kinds*.py tests/apache/test_store*.py)
TESTS_apache  := tests/apache $(patsubst %,--ignore=%,$(TESTS_clients) $(TESTS_both) $(TESTS_kinds))
TESTS_spark   := tests/spark
TESTS_tools   := tests/integration/cli tests/integration/client tests/adversity
TESTS_servers := tests/integration --ignore=tests/integration/cli --ignore=tests/integration/client
TESTS_crash   := tests/crash tests/failover
TESTS_laws    := tests/property
TESTS_core    := tests/unit tests/golden tests/fuzz tests/cost tests/deploy tests/console
GROUPS        := clients kinds spark servers tools crash both laws core
NICE          := 5
test-spark test-spark-beside test-both test-both-beside: NICE := 0
# Tests with the marker `full` are run by test-all only; CONTRIBUTING.md has the reason of each.
SELECTED      := -m 'not full'
RUN_TESTS      = nice -n $(NICE) $(BIN)/pytest -q --durations=50 --durations-min=0.5 $(SELECTED) $(TESTS_$*)

test: setup $(VENV)/.spark valgrind-if-possible ## the gate: every check, and the tests of everything; ten minutes
	@mkdir -p .cache
	@rm -f .cache/failed-* .cache/test-*.log
	@$(MAKE) --no-print-directory -k -j5 test-apache-shown $(GROUPS:%=test-%-beside) check-beside SELECTED="$(SELECTED)"; status=$$?; \
	for group in $(GROUPS) check; do echo "$$group, at the same time:"; sed '/= slowest .* durations =/,/^$$/d' .cache/test-$$group.log; done; \
	cat .cache/test-*.log | grep -E '^ *[0-9.]+s (call|setup|teardown) ' | sort -rn | head -50 > .cache/durations.txt; \
	echo "the slowest tests (.cache/durations.txt):"; cat .cache/durations.txt; \
	for group in $$(ls .cache | sed -n 's/^failed-//p'); do echo "failed: $$group"; \
	  grep -sE '^(FAILED|ERROR|make.*Error|.*: error)' .cache/test-$$group.log; done; exit $$status

test-all: SELECTED :=
test-all: test ## test and all that it leaves out: other versions and databases, long crash tables, stress; an hour and more

.PHONY: test-apache $(GROUPS:%=test-%) check-beside
test-apache $(GROUPS:%=test-%): test-%: setup $(VENV)/.spark
	$(RUN_TESTS)

test-%-shown:
	@set -o pipefail; $(RUN_TESTS) 2>&1 | tee .cache/test-$*.log || { touch .cache/failed-$*; exit 1; }

test-%-beside:
	@$(RUN_TESTS) >.cache/test-$*.log 2>&1 || { touch .cache/failed-$*; exit 1; }

check-beside:
	@nice -n 5 $(MAKE) --no-print-directory check >.cache/test-check.log 2>&1 || { touch .cache/failed-check; exit 1; }

check: setup $(VENV)/.spark ## format, lint, types, import rules, tidiness, and the kernel's own lints
	$(BIN)/ruff format --check --quiet src tests bench tools
	$(BIN)/ruff check --quiet src tests bench tools
	$(BIN)/lint-imports --no-cache --config pyproject.toml
	$(BIN)/mypy src tests bench tools
	$(BIN)/basedpyright --warnings
	@if [ -e $(VENV)/.kernel ] && cargo clippy --version >/dev/null 2>&1; then \
	  echo "cargo fmt --check && cargo clippy"; \
	  cd kernel && cargo fmt --check && cargo clippy --quiet --locked -- -D warnings; \
	fi
	$(BIN)/pytest -q tests/test_tidy.py

unit: setup ## the fast tests only
	$(BIN)/pytest -q tests/unit tests/property

fuzz: setup ## a million mutated inputs for every decoder and for access control
	$(BIN)/python -m tests.fuzz.run --count 1000000

STORM_S ?= 300
storm: setup ## the client for five minutes behind a proxy that cuts, stalls, delays and garbles
	TIANZHOU_ADVERSITY_S=$(STORM_S) $(BIN)/pytest -q tests/adversity -k nothing_is_lost -o log_cli=true --log-cli-level=WARNING

# Counting instructions needs valgrind; as root on Debian it is installed, elsewhere its test is skipped.
.PHONY: cost cost-baseline profile valgrind-if-possible
valgrind-if-possible:
	@if ! command -v valgrind >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "setup: installing valgrind"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null \
	    || echo "setup: valgrind could not be installed, so no instructions are counted"; \
	fi

cost: setup valgrind-if-possible ## instructions per message of the kernel's paths, beside their baseline
	@$(BIN)/python -m tests.cost.counting

cost-baseline: setup valgrind-if-possible ## make the present counts the baselines
	@$(BIN)/python -m tests.cost.counting --write

profile: setup ## flame graphs of the broker's loop and of the kernel, into profiles/
	@$(BIN)/python tools/profile.py

# In `make test` the same tests read twenty thousand.
SPARK_FULL := tests/spark/test_size.py \
  tests/apache/test_spark_apache.py::test_batches_from_the_broker_and_from_its_files_agree
spark-full: setup $(VENV)/.spark ## Spark reads a million messages, each once, from Tianzhou and from Apache; five minutes, 4 GiB of disk
	TIANZHOU_SPARK_ROWS=1000000 $(BIN)/pytest -q --durations=0 $(SPARK_FULL)

bench: setup ## measure against Apache RocketMQ and write docs/performance.md; half an hour
	$(BIN)/python -m bench.run

bench-broker: setup ## the brokers only, two short rounds, written too; ten minutes
	$(BIN)/python -m bench.run --only broker --rounds 2 --seconds 3

bench-quick: setup ## all of it in short, printed only; three minutes
	$(BIN)/python -m bench.run --quick

bench-spark: setup $(VENV)/.spark ## measure Spark over topics; wants a quiet machine
	$(BIN)/python -m bench.bench_spark

docs: $(VENV)/.docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@test -f site/index.html && echo "docs: site/index.html"

# What tests and tools bring themselves, and what builds the two packages.
ALSO_INSTALLED := 'pyspark[pipelines]' 'pandas<3' py-spy hatchling maturin
versions: ## write the newest versions of all that is installed here into constraints.txt, to be tried by make test
	@rm -rf .cache/newest && $(PYTHON) -m venv .cache/newest
	@echo "versions: installing the newest of everything"
	@PIP_CONSTRAINT= .cache/newest/bin/pip install -q '.[all,dev,docs,telemetry]' $(ALSO_INSTALLED)
	@{ echo "# The versions that development, tests and the image install; users' bounds are in pyproject.toml."; \
	  echo "# Written by make versions."; \
	  .cache/newest/bin/pip freeze --exclude tianzhou --exclude setuptools; } > constraints.txt
	@rm -rf .cache/newest

$(VENV)/.docs: $(VENV)/.installed
	@$(BIN)/pip install -q -e '.[docs]'
	@touch $@

clean: ## remove everything that make created
	rm -rf $(VENV) .cache site profiles dist build kernel/target .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
