# Everything is installed into .venv; nothing is needed but Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: train test lint bench clean
.DEFAULT_GOAL := train

.venv/.run: pyproject.toml
	@echo "setting up .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) --editable .
	@touch $@

.venv/.test: .venv/.run
	@echo "installing what the tests need (PyTorch and transformers among it: a minute or two)"
	@$(PIP) --editable ".[test]"
	@touch $@

train: .venv/.run
	@$(BIN)/tapeless train

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest --numprocesses 2

bench: .venv/.test
	$(BIN)/python -m pytest --durations 20

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist
