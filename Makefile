# Everything a person does with this repository. `make up` and `make test` work on a fresh clone.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
COUNT ?= 1000000
VLLM_VERSIONS ?= 0.24.0 0.33.0
VLLM ?= 0.33.0

.PHONY: setup up demo bench-gateway bench-soak-interpreted check-gpu test test-all test-compiled test-fast fuzz lint docs structure
.PHONY: format compiled check-vllm-versions test-vllm read-vllm clean

setup: $(VENV)/.ready  ## Make .venv with everything in it, real vLLM for the CPU included

$(VENV)/.ready: pyproject.toml setup.py constraints.txt deploy/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) bash deploy/setup.sh
	touch $@

up: setup  ## Run Redis, engine, controller and gateway on this machine
	$(BIN)/specpilot up $(ARGS)

demo: setup  ## Drive a shifting load against a running `make up` (or one of its own) and print a table
	$(BIN)/specpilot bench demo $(ARGS)

bench-%: setup  ## A measurement by its name; `specpilot bench` lists them
	$(BIN)/specpilot bench $* $(ARGS)

bench-gateway: compiled  ## What the gateway costs beside other ways to reach an engine
	$(BIN)/specpilot bench gateway --compiled build/compiled $(ARGS)

bench-soak-interpreted: setup  ## `make bench-soak` on model runner V2, its kernels interpreted on a CPU: slow, so with few and short requests
	PYTHONPATH=tests/support/interpreted:. TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 SPECPILOT_ENGINE_CALIBRATE_S=0 \
		$(BIN)/specpilot bench soak --clients 4 --longest-tokens 32 $(ARGS)

check-gpu: setup  ## Whether the adapter is right and fast on this machine's GPU (or, as far as it goes, CPU): a report
	$(BIN)/specpilot bench gpu-check $(ARGS)

compiled: setup build/compiled/.ready  ## The gateway's hot path as C, in build/compiled: for releases and their measurement

build/compiled/.ready: setup.py pyproject.toml $(wildcard gateway/*.py gateway/*/*.py policy/*.py) | $(VENV)/.ready
	rm -rf build/wheel build/compiled build/lib* build/temp*
	SPECPILOT_COMPILE=1 $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w build/wheel .
	$(BIN)/python -m pip install --quiet --no-deps --target build/compiled build/wheel/specpilot-*.whl
	touch $@

lint: setup  ## Style, types and architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; $(BIN)/lint-imports; imports=$$?; wait $$types && exit $$imports

format: setup  ## Let ruff lay the code out
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

docs: setup  ## Build the documentation site into build/site; open build/site/index.html, or serve it with ARGS=serve
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(or $(ARGS),build --strict)

structure: setup  ## Draw the import graph by folder into docs/architecture/structure.md
	$(BIN)/python docs/architecture/structure.py

# Three processes for two cores, as many tests wait for others. Each has whole files (tests/conftest.py).
PYTEST = $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder
LONGEST_FIRST = tests/e2e tests/closed_loop tests/integration tests/contract tests/unit tests/fuzz

test: lint  ## Lint, and the tests that find nearly all faults: about 15 minutes on two cores
	$(PYTEST) --extended drawn $(LONGEST_FIRST) $(ARGS)

test-all: lint test-compiled  ## Every test, every variant, the compiled gateway's too: before an issue is closed, before a release
	SINGLE_K=check $(PYTEST) $(LONGEST_FIRST) $(ARGS)

test-compiled: compiled  ## The gateway's tests against its hot path as C, in the processes that they start too
	PYTHONSAFEPATH=1 PYTHONPATH="$(CURDIR)/build/compiled:$(CURDIR)" \
		$(PYTEST) -o pythonpath="build/compiled ." tests/contract tests/unit/gateway

test-fast: setup  ## The tests that need no engine
	$(BIN)/python -m pytest -m "not engine and not e2e" $(ARGS)

fuzz: setup  ## Grow inputs for what the gateway reads, COUNT in all
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "atheris==3.0.0"
	$(BIN)/python -m tests.fuzz --count $(COUNT) $(ARGS)

check-vllm-versions: setup  ## Whether vLLMs that need not run here have what the adapter relies on: VLLM_VERSIONS="0.33.0"
	for version in $(VLLM_VERSIONS); do $(BIN)/python -m pip download --quiet --no-deps --dest .specpilot/wheels vllm==$$version || exit; done
	VLLM_WHEELS=.specpilot/wheels $(BIN)/python -m pytest tests/unit/engine_adapter/vllm/test_reliance.py $(ARGS)

test-vllm: setup  ## The adapter's tests on a vLLM that has no CPU build, over the installed one's: VLLM=0.33.0, TESTS=tests/e2e/test_exact.py
	$(BIN)/python -m pip download --quiet --no-deps --dest .specpilot/wheels vllm==$(VLLM)
	$(BIN)/python -m tests.support.vllm_overlay .specpilot/wheels/vllm-$(VLLM)-*.whl .specpilot/vllm-$(VLLM)
	PYTHONPATH=$(CURDIR)/.specpilot/vllm-$(VLLM):$(CURDIR) $(BIN)/python -m pytest $(or $(TESTS),tests/unit/engine_adapter/vllm) $(ARGS)

read-vllm: setup  ## Write down what the functions are that the adapter relies on, in every accepted vLLM (docs/architecture/vllm-read.md)
	versions=$$($(BIN)/python -c 'from specpilot.engine_adapter.vllm.versions import ACCEPTED; print(*ACCEPTED)') && \
		for version in $$versions; do $(BIN)/python -m pip download --quiet --no-deps --dest .specpilot/wheels vllm==$$version.0 || exit; done
	VLLM_WHEELS=.specpilot/wheels $(BIN)/python -m tests.support.vllm_digests

clean:  ## Remove what the commands above made
	rm -rf $(VENV) .specpilot .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
