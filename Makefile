# Everything is installed into .venv; nothing is needed but Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: train test lint wheel-check docs docs-code bench scaling stdlib cllm labelling mutants figures doctor-trials soak fuzz clean
.DEFAULT_GOAL := train

.venv/.run: pyproject.toml
	@echo "setting up .venv (NumPy, Numba and, on x86-64, MKL: about half a minute)"
	@$(PYTHON) -m venv .venv
	@$(PIP) --editable ".[mkl]"
	@touch $@

.venv/.test: .venv/.run
	@echo "installing what the tests need (PyTorch and transformers among it: a minute or two)"
	@$(PIP) --editable ".[mkl,test]"
	@touch $@

.venv/.docs: .venv/.run
	@$(PIP) --editable ".[mkl,docs]"
	@touch $@

train: .venv/.run
	@$(BIN)/tapeless train

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# Ratios beside PyTorch, written to benchmarks/results.md. Leave the machine alone meanwhile: about ten minutes.
bench: .venv/.test
	$(BIN)/python benchmarks/run.py

# How the step's cost grows, drawn to docs/scaling.svg: about two minutes.
scaling: .venv/.run
	$(BIN)/python benchmarks/scaling.py

# A GPT of ten million parameters on Python's standard library, beside PyTorch: docs/stdlib.md. About an hour.
stdlib: .venv/.test
	$(BIN)/python benchmarks/stdlib.py

# The same model under squared error and under cross-entropy, drawn to docs/cllm.md: about ten minutes.
cllm: .venv/.test
	$(BIN)/python benchmarks/cllm.py

# The labeller on a genome of yours, three seeds with the defaults, written to docs/labelling.md: about half an hour.
# make labelling FASTA=genome.fa GFF=genes.gff3
labelling: .venv/.run
	@$(BIN)/python benchmarks/labelling.py --fasta "$(FASTA)" --gff "$(GFF)"

# Small mistakes made on purpose in the mathematics, and whether the suite notices each: about five minutes.
mutants: .venv/.test
	$(BIN)/python -m tools.mutants

# Every figure and block of output in README.md and docs/, made again where it stands: about five minutes.
figures: .venv/.test
	$(BIN)/python -m tools.figures

# Trainings with a trouble of known cause, and what the doctor says of each: docs/doctor.md. About ten minutes.
doctor-trials: .venv/.test
	$(BIN)/python -m tools.doctor

# The property tests again with fifty times as many cases, new ones each time: about ten minutes.
soak: .venv/.test
	TAPELESS_SOAK=50 $(BIN)/python -m pytest --numprocesses 2 tests/properties tests/ops tests/program tests/kernels tests/backends tests/check -k "random or any_model or property or properties or models_in_threads or every_bug"

# Every file the program reads, a million times changed at random; figures to docs/fuzzing.md: ten to twenty minutes.
fuzz: .venv/.test
	$(BIN)/python -m tools.fuzz --write

# The documentation as a site, in site/index.html; a link that leads nowhere is an error.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html; its search needs a server: python3 -m http.server -d site"

# The code in README.md and docs/ that takes longer than a test may.
docs-code: .venv/.test
	$(BIN)/python -m tools.documents --long

# The wheel alone, in an empty environment of each Python from 3.11 on that is here: about two minutes each.
wheel-check: .venv/.test
	$(BIN)/python -m tools.wheel_check

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist site
