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

# Python sources need no rebuild: the installation is editable. What is compiled or describes the package does.
PACKAGE_SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake csrc scripts -type f)

.PHONY: help build test test-slow test-ort-versions demo bench wheel clean distclean

help:
	@echo "make build              .venv with pinned dependencies, ONNX Runtime's headers, the C++ library"
	@echo "make test               the quick tests (sets everything up first, as every target does)"
	@echo "make test-slow          the tests that are too slow for 'make test'"
	@echo "make test-ort-versions  the wheel under the oldest and the newest onnxruntime (downloads them)"
	@echo "make demo               export, fuse and run a model; prints one table"
	@echo "make bench              the benchmarks"
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
	$(RUN) -m pytest -m "not slow"

test-slow: build
	$(RUN) -m pytest -m "slow and not ort_versions"

test-ort-versions: build
	$(RUN) -m pytest -m ort_versions

demo: build
	$(VENV)/bin/ort-hina demo

bench: build
	$(RUN) -m bench.moe

wheel: build
	$(RUN) -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf build dist .pytest_cache .hypothesis $(PACKAGE_STAMP)
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .deps
