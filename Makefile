# Every target does its own set-up: missing Debian packages (as root, otherwise it names them), Python packages in .venv.
# The rest is CMake's presets (CMakePresets.json): release, asan, tsan, arm.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help

# CMake and Ninja come from .venv, the same everywhere.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PY := .venv/bin/python
setup := scripts/setup
progress := source scripts/progress.sh; progress

.PHONY: help
help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## ?(.*)/make \1	\2/' | expand -t 16

.PHONY: demo
demo: setup-demo build  ## A real language model with its own norms and with ours: tokens, time, error, a training step
	@$(PY) -m examples.demo

.PHONY: test
test: setup-test build  ## All tests: C++ (ctest) and Python (pytest)
	cmake --preset release --log-level=WARNING
	@$(progress) "Building the C++ tests" cmake --build --preset release
	ctest --preset release
	$(PY) -m pytest

.PHONY: test-arm
test-arm: setup-arm  ## The C++ tests for 64-bit Arm, cross-compiled, under qemu-aarch64
	@if [ "$$(uname -m)" = aarch64 ]; then echo "This machine is an Arm: make test has run these tests."; exit 0; fi
	cmake --preset arm --log-level=WARNING
	@$(progress) "Building for Arm" cmake --build --preset arm
	ctest --preset arm

.PHONY: bench
bench: setup-bench build  ## Benchmark against copy, torch, ONNX Runtime, JAX and others; table and JSON
	@$(PY) bench/run.py

.PHONY: sanitize
sanitize: setup-test build sanitize-asan sanitize-tsan  ## C++ and Python tests under ASan and UBSan, C++ tests under TSan

# Leaks are looked for in the C++ tests only: an interpreter that ends frees little. A test asks for 2^60 elements.
.PHONY: sanitize-asan
sanitize-asan:
	cmake --preset asan -DNORMKIT_BUILD_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(PY) --log-level=WARNING
	@$(progress) "Building with ASan and UBSan" cmake --build --preset asan
	ctest --preset asan
	cmake --install build/asan --component python --prefix build/asan/site >/dev/null
	LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONPATH=build/asan/site $(PY) -m pytest tests/python/arrays

.PHONY: sanitize-tsan
sanitize-tsan:
	cmake --preset tsan --log-level=WARNING
	@$(progress) "Building with TSan" cmake --build --preset tsan
	ctest --preset tsan

# The wheel's build folder is also that of the preset release, so the engine is compiled once. The Python tests use the
# wheel as a user does: installed, not the source tree.
.PHONY: build
build: setup-build build/wheel.stamp  ## The library and the wheel; the wheel is installed in .venv
build/wheel.stamp: $(shell find include src cmake python CMakeLists.txt pyproject.toml -not -path '*/__pycache__*')
	@mkdir -p build && rm -rf build/wheel
	@$(progress) "Building the library and the wheel" $(PY) -m pip wheel . -v -w build/wheel --no-deps \
	  --disable-pip-version-check --no-build-isolation --config-settings=build-dir=build/release
	@$(PY) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps build/wheel/*.whl
	@touch $@

.PHONY: format
format: setup-lint  ## Formats C++ and Python
	git ls-files '*.h' '*.cc' | xargs clang-format -i
	ruff format
	ruff check --fix

.PHONY: lint
lint: setup-lint  ## Checks format, Python style and types
	git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror
	ruff format --check
	ruff check
	$(PY) -m mypy

.PHONY: clean
clean:  ## Removes what was built; .venv stays
	rm -rf build dist

.PHONY: setup-build setup-demo setup-test setup-arm setup-bench setup-lint
setup-build:
	@$(setup) build
setup-demo:
	@$(setup) build demo model
setup-test:
	@$(setup) build cpp test model
setup-arm:
	@$(setup) build arm
setup-bench:
	@$(setup) build bench
setup-lint:
	@$(setup) demo lint
