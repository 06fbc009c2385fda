# Everything is installed into .venv; nothing is needed but Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: budget train explore browser twins explorer-pictures recording test lint wheel-check docs docs-code bench gemm-shapes bfloat16 products scaling stdlib cllm labelling bugs mutants figures doctor-trials soak interrupts fuzz seeds kills clean muon finetune llama-cpp test-elsewhere
.DEFAULT_GOAL := train

# .venv/.run, .test, .chat, .docs: what that needs, looked at each time. tools/setup.py says how.
.venv/.%: FORCE
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 7))" 2>/dev/null || { \
		echo "$(PYTHON) is no Python of at least 3.11: name one, as in make PYTHON=python3.12." >&2; exit 1; }
	@"$(PYTHON)" tools/setup.py $*

FORCE:

# It ends with a link: the run's pages as one file, which opens without a server.
train: .venv/.run
	@$(BIN)/tapeless train
	@run=$$(ls -td runs/*/ | head -n 1); $(BIN)/tapeless explore "$$run" --export "$${run}report.html"

# The newest run in the browser, while it trains or afterwards.
explore: .venv/.run
	@$(BIN)/tapeless explore

# Two models of 24 layers, post-norm and pre-norm, without warm-up, recorded and shown side by side: about a minute.
twins: .venv/.run
	@$(BIN)/python -m tools.explorer
	@$(BIN)/tapeless explore runs/post-norm runs/pre-norm

# The pictures of docs/explorer.md, taken from real runs: about two minutes.
explorer-pictures: .venv/.test browser
	@$(BIN)/python -m tools.explorer --pictures

# What a recorded step costs beside a plain one: docs/explorer.md. About a minute.
recording: .venv/.test
	$(BIN)/python benchmarks/recording.py

# The pages are tried in a browser: the one that is there, or Debian's, where it may be installed.
browser: .venv/.test
	@if [ -z "$$($(BIN)/python tests/explorer/browser.py)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium, in which the explorer's pages are tried"; \
		apt-get install --yes --quiet=2 chromium >/dev/null 2>&1 || true; fi
	@if [ -z "$$($(BIN)/python tests/explorer/browser.py)" ]; then \
		echo "No browser is here and none could be installed: the explorer's pages are not tried, all else is."; fi

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

# tools/budget.toml, lowered to what there is: a few seconds.
budget: .venv/.test
	@$(BIN)/python -m tools.budget --lower

# While what was written is looked at, the kernels are compiled that the tests will want, each once.
test: browser
	@$(BIN)/python -m tools.kernels & kernels=$$!; $(MAKE) --no-print-directory lint && wait $$kernels
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# Ratios beside PyTorch, peft and transformers, to benchmarks/results.md. Leave the machine alone: about half an hour.
bench: .venv/.test
	$(BIN)/python benchmarks/run.py

# Our own products at every size up to 70 × 70 × 70, on vectors of every width: an hour, divided by the cores.
gemm-shapes: .venv/.test
	$(BIN)/python -m tests.kernels.gemm_shapes
	NUMBA_CPU_NAME=x86-64 NUMBA_CPU_FEATURES=+avx2,+fma,+avx $(BIN)/python -m tests.kernels.gemm_shapes
	NUMBA_CPU_NAME=x86-64 NUMBA_CPU_FEATURES=+sse4.2 $(BIN)/python -m tests.kernels.gemm_shapes
	$(BIN)/python -m tests.kernels.gemm_shapes_bfloat16

# Every configuration in bfloat16 on the CPU, call by call beside the reference: about five minutes.
bfloat16: .venv/.test
	$(BIN)/python -m tests.backends.bfloat16_everywhere

# Our own products beside MKL's and NumPy's, interleaved: about two minutes.
products: .venv/.test
	$(BIN)/python benchmarks/products.py

# How the step's cost grows, drawn to docs/scaling.svg: about two minutes.
scaling: .venv/.run
	$(BIN)/python benchmarks/scaling.py

# A GPT of ten million parameters on Python's standard library, beside PyTorch: docs/stdlib.md. About an hour.
stdlib: .venv/.test
	$(BIN)/python benchmarks/stdlib.py

# A small Llama learns the standard library, and by LoRA to answer questions about it: docs/fine-tuning.md. About a
# quarter of an hour.
finetune: .venv/.chat
	$(BIN)/python benchmarks/finetune.py

# AdamW and Muon at the same tokens of the standard library, drawn to docs/muon.md: about a quarter of an hour.
muon: .venv/.test
	$(BIN)/python benchmarks/muon.py

# The same model under squared error and under cross-entropy, drawn to docs/cllm.md: about ten minutes.
cllm: .venv/.test
	$(BIN)/python benchmarks/cllm.py

# The labeller on a genome of yours, three seeds with the defaults, written to docs/labelling.md: about half an hour.
# make labelling FASTA=genome.fa GFF=genes.gff3
labelling: .venv/.run
	@$(BIN)/python benchmarks/labelling.py --fasta "$(FASTA)" --gff "$(GFF)"

# llama.cpp's own programs are not needed: its library is built from llama-cpp-python's source, in a place of its own.
.venv-llama/.built:
	@echo "building llama.cpp from its source (cmake and a C++ compiler; about six minutes of a core)"
	@$(PYTHON) -m venv .venv-llama
	@CMAKE_BUILD_PARALLEL_LEVEL=2 CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF -DGGML_OPENMP=OFF" \
		.venv-llama/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-binary llama-cpp-python llama-cpp-python==0.3.36
	@touch $@

# GGUF files of every family in llama.cpp itself, beside ours; figures to docs/training.md. One minute, once it is built.
llama-cpp: .venv/.test .venv-llama/.built
	$(BIN)/python benchmarks/llamacpp.py --reader .venv-llama/bin/python

# Every bug of the catalogue planted and looked for, by us and by other projects' rules: docs/bugs.md. Five minutes.
bugs: .venv/.test
	$(BIN)/python -m tests.bugs

# Small mistakes made on purpose in the mathematics, and whether the suite notices each: about five minutes.
mutants: .venv/.test
	$(BIN)/python -m tools.mutants

# A thousand KeyboardInterrupts mixed with forks, threads and compiling, from a cold cache: docs/decisions/0264.
interrupts: .venv/.test
	NUMBA_CACHE_DIR=$$(mktemp -d) $(BIN)/python -m tests.kernels.interrupting 1000

# Every figure and block of output in README.md and docs/, made again where it stands: about five minutes.
figures: .venv/.test
	$(BIN)/python -m tools.figures

# Trainings with a trouble of known cause, and what the doctor says of each: docs/doctor.md. About ten minutes.
doctor-trials: .venv/.test
	$(BIN)/python -m tools.doctor

# The property tests again with fifty times as many cases, new ones each time: about ten minutes.
soak: .venv/.test
	TAPELESS_SOAK=50 $(BIN)/python -m pytest --numprocesses 2 tests/properties tests/ops tests/program tests/kernels tests/backends tests/check tests/bugs tests/train/test_resume.py tests/test_generate.py tests/explorer -k "random or any_model or property or properties or models_in_threads or every_bug or healthy_program or cut_anywhere or without_a_cache or same_bits or leaves_its_arrays or what_the_reference_does or opens_for_everybody or is_proven"

# The tests as other machines would run them, to docs/elsewhere.md: two hours. One alone: make test-elsewhere ONLY="one core".
test-elsewhere: browser
	$(BIN)/python -m tools.elsewhere $(if $(ONLY),"$(ONLY)")

# The default training with twenty seeds, on our own GEMM and on MKL's: docs/training.md. About two minutes.
seeds: .venv/.run
	$(BIN)/python benchmarks/seeds.py

# Trainings killed five hundred times, in every phase, and what they recorded: docs/training.md. About two minutes.
kills: .venv/.test
	$(BIN)/python -m tools.kills

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
	rm -rf .venv .elsewhere .mypy_cache .ruff_cache .pytest_cache build dist site
