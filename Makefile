# A virtual environment of its own, then the commands of the README.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATASET ?= digits
export OMP_NUM_THREADS := 1

.PHONY: install demo demo-picture demo-on-ray test fuzz mutants slow signals federation faults attacks edge soak units lint newest bill config docs clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

demo: install  ## four kinds of skew and a method against each; one run through Flower's simulation on Ray as well
	$(BIN)/fedskew run demo
	@$(MAKE) --no-print-directory -j2 demo-picture demo-on-ray
	@echo "These are settings where the methods help; docs/results/results.md has where they do not."
	@echo
	@echo "IWDS, seed 0, in the workbench's own processes and through Flower's simulation on Ray:"
	@$(BIN)/python scripts/same_hash.py results results/ray
	@echo
	@echo "The picture: results/demo.png    The whole report: results/demo.html"

demo-picture:
	$(BIN)/python scripts/picture.py results/demo.png --html results/demo.html demo

demo-on-ray:  # beside the picture, as each of them keeps one core busy
	$(BIN)/fedskew run demo-tails --row iwds --seed 0 --engine ray --results results/ray > results/ray.log 2>&1 || (cat results/ray.log; false)

test: install
	$(BIN)/python -m pytest -n logical --dist worksteal

fuzz: install  ## 100,000 changed replies to all methods, 10,000 changed files: what became of them, in docs/results/reliability.md
	PYTHONPATH=tests $(BIN)/python tests/fuzz/tables.py --write docs/results/reliability.md

mutants: install  ## break the code in 300 places, one at a time, and see whether a fast test notices; up to an hour
	$(BIN)/python -m pip install --quiet -e '.[mutants]'
	$(BIN)/python scripts/mutants.py --write docs/results/reliability.md

slow: install
	-$(BIN)/python -m pip install --quiet -e '.[backbone,hf,timm]'  # without them their tests are skipped by name
	$(BIN)/python -m pytest -m slow

signals: install  ## every signal at every moment on every engine and on sweeps, as a table; wants a quiet machine
	PYTHONPATH=. $(BIN)/python tests/fedskew/signal_matrix.py

federation: install  ## four sites with their own data through gate, TLS and keys; right if the hash is the rehearsal's
	$(BIN)/python deploy/try_federation.py --dataset $(DATASET)

faults: install  ## what goes wrong between hospitals, each three times, as a table; wants root, and a quiet machine
	$(BIN)/python deploy/try_faults.py --write docs/results/reliability.md

attacks: install  ## attack such a federation, each attack beside an honest request that passes; wants root; the table goes into docs/explanation/security.md
	$(BIN)/python deploy/try_attacks.py --write docs/explanation/security.md

edge: install  ## eight sites of one core and 1 GiB that come and go; wants root
	$(BIN)/python deploy/try_edge.py --write docs/guides/deployment.md

soak: install  ## 300 rounds of two sites: memory and open files of every process at rounds 50 and 300; about an hour
	$(BIN)/python deploy/try_soak.py --write docs/results/reliability.md

units: install  ## look at the systemd units: that they are right, and what they may do
	deploy/check_units.sh

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

newest: install  ## what touches flwr with the newest flwr: a report, which fails nothing
	.ci/newest

bill: install  ## write the bill of materials of what is installed, in CycloneDX
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
