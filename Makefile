# A virtual environment of its own, then the commands of the README.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATASET ?= digits
export OMP_NUM_THREADS := 1

.PHONY: install demo demo-report demo-on-ray test fuzz mutants slow signals federation faults units lint types newest bill config docs clean

install: $(VENV)/installed  ## install FedSkew and what its tests need into .venv

$(VENV)/installed: pyproject.toml
	@echo "Installing FedSkew and its packages into $(VENV): 6.6 GB, of which 4 are for NVIDIA GPUs; about 3 GB to download, 5 minutes at 100 Mbit/s."
	@echo "Without a GPU 2 GB: set PIP_EXTRA_INDEX_URL to the package index of PyTorch's CPU builds first."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

demo: install  ## train on four kinds of skew, with a method against each, and report; one run also goes through Flower on Ray
	$(BIN)/fedskew run demo
	@$(MAKE) --no-print-directory -j2 demo-report demo-on-ray
	@echo "These are settings where the methods help; docs/results/results.md has where they do not."
	@echo
	@echo "IWDS, seed 0, in the workbench's own processes and through Flower's simulation on Ray:"
	@$(BIN)/python scripts/same_hash.py results results/ray
	@echo
	@echo "The whole report: results/demo.html"

demo-report:
	$(BIN)/fedskew report demo --html results/demo.html

demo-on-ray:  # beside the report, as each of them keeps one core busy
	$(BIN)/fedskew run demo-tails --row iwds --seed 0 --engine ray --results results/ray > results/ray.log 2>&1 || (cat results/ray.log; false)

test: install
	$(BIN)/python -m pytest -n logical --dist worksteal --durations=15

fuzz: install  ## fuzz all methods with 100,000 changed replies and all readers with 10,000 changed files; writes docs/results/reliability.md
	PYTHONPATH=tests $(BIN)/python tests/fuzz/tables.py --write docs/results/reliability.md

mutants: install  ## mutation testing: break the code in 150 places, one at a time, and run the fast tests; a quarter of an hour
	$(BIN)/python -m pip install --quiet -e '.[mutants]'
	$(BIN)/python scripts/mutants.py --write docs/results/reliability.md

slow: install
	-$(BIN)/python -m pip install --quiet -e '.[backbone,hf,timm]'  # without them their tests are skipped by name
	$(BIN)/python -m pytest -m slow -n 2 --dist loadgroup --durations=20  # what shares a federation or Ray runs in one of the two processes

signals: install  ## send signals to commands at six moments, on every engine and in sweeps; needs a quiet machine
	$(BIN)/python -m pytest -v -m "signals or not slow" tests/fedskew/test_signals.py

federation: install  ## run four sites with their own data through the SuperLink's door, TLS and keys, and compare the hash with the rehearsal's; HEADS=1: heads in closed form from masked sums
	$(BIN)/python deploy/try_federation.py --dataset $(DATASET) $(if $(HEADS),--heads)

faults: install  ## inject faults into a federation, each three times, and print a table; needs a quiet machine
	$(BIN)/python deploy/try_faults.py --write docs/results/reliability.md

units: install  ## check the systemd units and their permissions
	deploy/check_units.sh

lint: install  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## check types, strictly
	$(BIN)/mypy

newest: install  ## run the tests of code that uses flwr with the newest flwr; never fails
	.ci/newest

bill: install  ## write a bill of materials of the installed packages, in CycloneDX form
	$(PYTHON) -m venv $(VENV)-bill
	$(VENV)-bill/bin/python -m pip install --quiet cyclonedx-bom
	$(VENV)-bill/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file bill-of-materials.json $(BIN)/python
	rm -rf $(VENV)-bill

config: install  ## write the settings' defaults into pyproject.toml, where flwr looks for them, and the reference pages
	$(BIN)/python -m server_app.settings pyproject.toml
	$(BIN)/python scripts/method_tables.py
	$(BIN)/python scripts/reference_pages.py

docs: install  ## build the documentation as a site, in site/; a broken link is an error
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache results site
