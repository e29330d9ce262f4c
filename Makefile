# Two commands for a stranger: `make quickstart` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart test faults hostile browser-test lint format docs figures pages clean

quickstart: $(READY)
	$(BIN)/bronet quickstart

# Two processes: many tests wait for others that they start. A file stays in one, because its fixtures do.
test: $(READY) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Kills, damaged files, full disks and wrong command lines, by the thousand: a quarter of an hour on two cores.
faults: $(READY)
	BRONET_FAULTS_PAGE=docs/reliability.md $(BIN)/python -m pytest -m slow -n 2 --dist load tests/faults

# Layers, certificates and weights made to deceive, by the thousand: half an hour on two cores.
hostile: $(READY)
	$(BIN)/python -m pytest -m slow -n 2 --dist load -rP tests/hostile

# Without Chromium `make test` leaves these out; here it is installed first (Debian, as root).
browser-test: $(READY)
	command -v chromium || (apt-get update && apt-get install -y --no-install-recommends chromium)
	$(BIN)/python -m pytest tests/web/test_browser.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

figures: $(READY)
	$(BIN)/python -m lab draw

# The numbers of these pages, computed anew from results/.
pages: $(READY)
	$(BIN)/python -m lab fill

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Made anew when the dependencies change.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "bronet needs Python 3.11 or later, found %d.%d; name another with: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)
