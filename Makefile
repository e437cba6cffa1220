# Everything runs in .venv, which `make build` makes. PYTHON names the Python to make it from (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python

# The venv's own tools (cmake, ninja) come before the system's, whose cmake may be too old; but a venv is not made from
# itself.
SYSTEM_PATH := $(PATH)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

REQUIREMENTS_STAMP := $(VENV)/.requirements-installed
PACKAGE_STAMP      := $(VENV)/.package-installed

# Exporters that need another version of transformers live apart. Nothing but `make fixtures` and `make matrix` uses them.
EXPORTERS       := build/exporters
EXPORTERS_STAMP := $(EXPORTERS)/.requirements-installed

# Python sources need no rebuild: the installation is editable. What is compiled or describes the package does.
PACKAGE_SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake csrc scripts -type f)

# The native tests: no Python, no ONNX Runtime. Each variant has a build folder of its own.
NATIVE_VARIANT := $(if $(CROSS),-$(CROSS))$(if $(STATIC),-static)
NATIVE_BUILD   := build/native$(NATIVE_VARIANT)
NATIVE_OPTIONS := $(if $(STATIC),-DORT_HINA_STATIC=ON) $(if $(CROSS),-DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=$(CROSS) -DCMAKE_CXX_COMPILER=$(CROSS)-linux-gnu-g++)
NATIVE_RUNNER  := $(if $(CROSS),qemu-$(CROSS)-static $(if $(STATIC),,-L /usr/$(CROSS)-linux-gnu))
NATIVE_CMAKE   := cmake -S . -DORT_HINA_NATIVE_TESTS_ONLY=ON

.PHONY: help build test test-slow test-ort-versions numa-test native-tests asan demo bench exporters fixtures matrix wheel clean distclean

help:
	@echo "make build              .venv with pinned dependencies, ONNX Runtime's headers, the C++ library"
	@echo "make test               the quick tests (sets everything up first, as every target does)"
	@echo "make test-slow          the tests that are too slow for 'make test'"
	@echo "make test-ort-versions  the wheel under the oldest and the newest onnxruntime (downloads them)"
	@echo "make numa-test          the library on emulated machines with several memory nodes (needs QEMU; ARGS='-k odd')"
	@echo "make native-tests       the kernels' own test program, without Python (STATIC=1, CROSS=aarch64, ARGS=--list)"
	@echo "make asan               the same with the address and undefined-behaviour sanitizers"
	@echo "make demo               export, fuse and run a model; prints one table"
	@echo "make bench              the benchmarks"
	@echo "make exporters          an environment with transformers 5 and its exporters, in build/exporters (downloads gigabytes)"
	@echo "make matrix             every family x exporter: exported, fused, compared (ARGS=--quick; more with make exporters)"
	@echo "make fixtures           exports again what the tests read (needs make exporters; EXPORTS=DIR keeps the exports)"
	@echo "make wheel              a wheel in dist/"
	@echo "make clean              removes what was built; make distclean also .venv and fetched headers"
	@echo "PYTHON=/path/to/python3 picks the Python that .venv is made from"

build: $(PACKAGE_STAMP)

$(REQUIREMENTS_STAMP): requirements/dev.txt
	PATH="$(SYSTEM_PATH)" scripts/make_venv.sh $(VENV) $(PYTHON)
	$(RUN) -m pip install --disable-pip-version-check -r requirements/dev.txt
	@touch $@

$(PACKAGE_STAMP): $(REQUIREMENTS_STAMP) $(PACKAGE_SOURCES)
	$(RUN) -m pip install --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

test: build
	$(RUN) -m pytest -m "not slow and not numa_lab"

test-slow: build
	$(RUN) -m pytest -m "slow and not ort_versions"

test-ort-versions: build
	$(RUN) -m pytest -m ort_versions

numa-test: build
	$(RUN) -m pytest -m numa_lab -rs tests/numa $(ARGS)

native-tests:
	$(NATIVE_CMAKE) -B $(NATIVE_BUILD) $(NATIVE_OPTIONS)
	cmake --build $(NATIVE_BUILD) --parallel $(shell nproc)
	$(NATIVE_RUNNER) $(NATIVE_BUILD)/tests/native/native_tests $(ARGS)

asan:
	$(NATIVE_CMAKE) -B build/native-asan -DORT_HINA_SANITIZE=address,undefined
	cmake --build build/native-asan --parallel $(shell nproc)
	build/native-asan/tests/native/native_tests $(ARGS)

demo: build
	$(VENV)/bin/ort-hina demo

bench: build
	$(VENV)/bin/ort-hina bench

$(EXPORTERS_STAMP): requirements/exporters.txt
	PATH="$(SYSTEM_PATH)" scripts/make_venv.sh $(EXPORTERS) $(PYTHON)
	$(EXPORTERS)/bin/python -m pip install --disable-pip-version-check -r requirements/exporters.txt
	@touch $@

exporters: $(EXPORTERS_STAMP)

fixtures: build exporters
	$(RUN) -m ort_hina.models.fixtures tests/fixtures $(if $(EXPORTS),--exports $(EXPORTS))

matrix: build
	$(VENV)/bin/ort-hina matrix $(ARGS)

wheel: build
	$(RUN) -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf build dist .pytest_cache .hypothesis $(PACKAGE_STAMP)
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .deps
