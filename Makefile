# Everything is installed into .venv; nothing is needed but Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help budget train explore browser twins explorer-pictures recording test lint wheel-check docs docs-code bench gemm-shapes bfloat16 products scaling stdlib cllm labelling bugs mutants figures doctor-trials soak interrupts fuzz seeds kills clean muon finetune llama-cpp test-elsewhere augustus check-kernels pages
.DEFAULT_GOAL := train

# .venv/.run, .test, .chat, .docs: what that needs, looked at each time. tools/setup.py says how.
.venv/.%: FORCE
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 7))" 2>/dev/null || { \
		echo "$(PYTHON) is no Python of at least 3.11: name one, as in make PYTHON=python3.12." >&2; exit 1; }
	@"$(PYTHON)" tools/setup.py $*

FORCE:

# It ends with a link: the run's pages as one file, which opens without a server.
train: .venv/.run ## Train a small transformer on max, min and the like, in seconds
	@$(BIN)/tapeless train
	@run=$$(ls -td runs/*/ | head -n 1); $(BIN)/tapeless explore "$$run" --export "$${run}report.html"

explore: .venv/.run ## Look at the newest run in the browser
	@$(BIN)/tapeless explore

# While what was written is looked at, the kernels are compiled that the tests will want, each once.
test: browser ## Lint, type-check, verify every gradient, and run every test
	@$(BIN)/python -m tools.kernels & kernels=$$!; $(MAKE) --no-print-directory lint && wait $$kernels
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

bench: .venv/.test ## Compare step times with PyTorch's, to docs/benchmarks.md: half an hour
	$(BIN)/python benchmarks/run.py

docs: .venv/.docs ## Build the documentation as a site, in site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html; its search needs a server: python3 -m http.server -d site"

help: ## List the targets
	@awk -F ':.* ## ' '/^[a-z0-9-]+:.* ## / { printf "%s  make %-18s %s\n", n++ == 5 ? "\n" : "", $$1, $$2 }' Makefile

twins: .venv/.run ## Train post-norm and pre-norm models of 24 layers and show both: a minute
	@$(BIN)/python -m tools.explorer
	@$(BIN)/tapeless explore runs/post-norm runs/pre-norm

explorer-pictures: .venv/.test browser ## Make the pictures of docs/explorer.md: two minutes
	@$(BIN)/python -m tools.explorer --pictures

recording: .venv/.test ## Measure what a recorded step costs: a minute
	$(BIN)/python benchmarks/recording.py

# The pages are tried in a browser: the one that is there, or Debian's, where it may be installed.
browser: .venv/.test ## Install a browser for the tests of the explorer, if there is none
	@if [ -z "$$($(BIN)/python tests/explorer/browser.py)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium, in which the explorer's pages are tried"; \
		apt-get install --yes --quiet=2 chromium >/dev/null 2>&1 || true; fi
	@if [ -z "$$($(BIN)/python tests/explorer/browser.py)" ]; then \
		echo "No browser is here and none could be installed: the explorer's pages are not tried, all else is."; fi

lint: .venv/.test ## Check style, imports and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

budget: .venv/.test ## Lower tools/budget.toml to what there is
	@$(BIN)/python -m tools.budget --lower

gemm-shapes: .venv/.test ## Check our GEMM at every size up to 70 × 70 × 70: an hour, divided by the cores
	$(BIN)/python -m tests.kernels.gemm_shapes
	NUMBA_CPU_NAME=x86-64 NUMBA_CPU_FEATURES=+avx2,+fma,+avx $(BIN)/python -m tests.kernels.gemm_shapes
	NUMBA_CPU_NAME=x86-64 NUMBA_CPU_FEATURES=+sse4.2 $(BIN)/python -m tests.kernels.gemm_shapes
	$(BIN)/python -m tests.kernels.gemm_shapes_bfloat16

bfloat16: .venv/.test ## Compare every configuration in bfloat16 with the reference: five minutes
	$(BIN)/python -m tests.backends.bfloat16_everywhere

products: .venv/.test ## Compare our GEMM with MKL's and NumPy's: two minutes
	$(BIN)/python benchmarks/products.py

scaling: .venv/.run ## Measure how a step grows, to docs/scaling.svg: two minutes
	$(BIN)/python benchmarks/scaling.py

stdlib: .venv/.test ## Train a GPT on Python's standard library, against PyTorch: an hour
	$(BIN)/python benchmarks/stdlib.py

finetune: .venv/.chat ## Fine-tune a small Llama with LoRA: a quarter of an hour
	$(BIN)/python benchmarks/finetune.py

muon: .venv/.test ## Compare AdamW with Muon, to docs/muon.md: a quarter of an hour
	$(BIN)/python benchmarks/muon.py

cllm: .venv/.test ## Compare squared error with cross-entropy, to docs/cllm.md: ten minutes
	$(BIN)/python benchmarks/cllm.py

labelling: .venv/.run ## Label a genome: make labelling FASTA=genome.fa GFF=genes.gff3; half an hour
	@$(BIN)/python benchmarks/labelling.py --fasta "$(FASTA)" --gff "$(GFF)"

check-kernels: .venv/.test ## Judge PyTorch's ops and the wrong kernels, twenty seeds: an hour
	TAPELESS_SOAK=20 $(BIN)/python -m pytest -n 2 tests/check/own/test_torch_ops.py tests/check/own/test_mistakes.py

# No other target needs npm.
pages: ## The explorer's JavaScript by prettier, eslint and tsc, from npm
	npm install --no-audit --no-fund --silent
	npm run --silent pages

# AUGUSTUS (apt install augustus), trained on the same genes and scored on the same part.
# make augustus FASTA=genome.fa GFF=genes.gff3
augustus: .venv/.run ## AUGUSTUS on the genome of make labelling; minutes
	@$(BIN)/python benchmarks/labelling.py --augustus --fasta "$(FASTA)" --gff "$(GFF)"

# llama.cpp's own programs are not needed: its library is built from llama-cpp-python's source, in a place of its own.
.venv-llama/.built:
	@echo "building llama.cpp from its source (cmake and a C++ compiler; about six minutes of a core)"
	@$(PYTHON) -m venv .venv-llama
	@CMAKE_BUILD_PARALLEL_LEVEL=2 CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF -DGGML_OPENMP=OFF" \
		.venv-llama/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-binary llama-cpp-python llama-cpp-python==0.3.36
	@touch $@

llama-cpp: .venv/.test .venv-llama/.built ## Check exported GGUF files in llama.cpp: a minute, once it is built
	$(BIN)/python benchmarks/llamacpp.py --reader .venv-llama/bin/python

bugs: .venv/.test ## Plant every bug of the catalogue and see each caught: five minutes
	$(BIN)/python -m tests.bugs

mutants: .venv/.test ## Mutate the sources and see what the tests notice: five minutes
	$(BIN)/python -m tools.mutants

interrupts: .venv/.test ## Check a thousand KeyboardInterrupts
	NUMBA_CACHE_DIR=$$(mktemp -d) $(BIN)/python -m tests.kernels.interrupting 1000

figures: .venv/.test ## Make every figure and output in README.md and docs/ again: five minutes
	$(BIN)/python -m tools.figures

doctor-trials: .venv/.test ## Ask the doctor about trainings with a known trouble: ten minutes
	$(BIN)/python -m tools.doctor

soak: .venv/.test ## Run the property tests with fifty times as many cases: ten minutes
	TAPELESS_SOAK=50 $(BIN)/python -m pytest --numprocesses 2 tests/properties tests/ops tests/program tests/kernels tests/backends tests/check tests/bugs tests/train/test_resume.py tests/test_generate.py tests/explorer -k "random or any_model or property or properties or models_in_threads or every_bug or healthy_program or cut_anywhere or without_a_cache or same_bits or leaves_its_arrays or what_the_reference_does or opens_for_everybody or is_proven"

test-elsewhere: browser ## Run the tests as other machines would: two hours, or one with ONLY="one core"
	$(BIN)/python -m tools.elsewhere $(if $(ONLY),"$(ONLY)")

seeds: .venv/.run ## Run the default training with twenty seeds: two minutes
	$(BIN)/python benchmarks/seeds.py

kills: .venv/.test ## Kill trainings five hundred times: two minutes
	$(BIN)/python -m tools.kills

fuzz: .venv/.test ## Change every file the program reads at random: ten to twenty minutes
	$(BIN)/python -m tools.fuzz --write

docs-code: .venv/.test ## Run the code in the documentation that takes long
	$(BIN)/python -m tools.documents --long

wheel-check: .venv/.test ## Install and try the wheel in an empty environment: two minutes per Python
	$(BIN)/python -m tools.wheel_check

clean: ## Remove the environment, caches and builds
	rm -rf .venv .elsewhere .mypy_cache .ruff_cache .pytest_cache build dist site
