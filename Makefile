# Everything a person does with this repository. `make up` and `make test` work on a fresh clone.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: setup up demo bench-adapter bench-control bench-gateway bench-soak test test-fast lint format clean

setup: $(VENV)/.ready  ## Make .venv with everything in it, real vLLM for the CPU included

$(VENV)/.ready: pyproject.toml constraints.txt deploy/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) bash deploy/setup.sh
	touch $@

up: setup  ## Run Redis, engine, controller and gateway on this machine
	$(BIN)/specpilot up $(ARGS)

demo: setup  ## Drive a shifting load against a running `make up` (or one of its own) and print a table
	$(BIN)/specpilot bench demo $(ARGS)

bench-adapter: setup  ## What the adapter costs and gains inside the engine
	$(BIN)/specpilot bench adapter $(ARGS)

bench-control: setup  ## The control law beside static K and a table tuned by hand; report and plot
	$(BIN)/specpilot bench control $(ARGS)

bench-gateway: setup  ## What the gateway costs beside other ways to reach an engine
	$(BIN)/specpilot bench gateway $(ARGS)

bench-soak: setup  ## A real engine under everything at once, watched for errors and leaks
	$(BIN)/specpilot bench soak $(ARGS)

lint: setup  ## Style, types and architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Let ruff lay the code out
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

test: lint  ## Every test, the ones with a real engine included
	$(BIN)/python -m pytest $(ARGS)

test-fast: setup  ## The tests that need no engine
	$(BIN)/python -m pytest -m "not engine and not e2e" $(ARGS)

clean:  ## Remove what the commands above made
	rm -rf $(VENV) .specpilot .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
