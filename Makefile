# Each target does its own set-up: it makes .venv where there is none.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check soak performance clean

demo: $(INSTALLED)  ## a cold start taken apart, a short burst, an HTML report
	$(BIN)/bench demo

test: $(INSTALLED) check  ## the whole quick suite: lint, types, tests, in three processes (they wait more than they compute)
	$(BIN)/python -m pytest -n 3 --dist loadfile

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(INSTALLED)  ## the long bars
	$(BIN)/python -m pytest tests/soak --timeout 5400

performance: $(INSTALLED)  ## the timed bars: run it on a machine that does nothing else
	$(BIN)/python -m pytest tests/performance -s --timeout 3600

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing coldburst and what it needs into $(VENV), which takes a minute or two ..."
	$(BIN)/python -m pip install -qq --upgrade pip
	$(BIN)/python -m pip install -qq --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
