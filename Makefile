PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

COLOSSALAI := .venv-colossalai
SCHEDULERS := .venv-schedulers
CATALOGUE := launcher/trainwiz/locale/zh_CN/LC_MESSAGES/trainwiz

.PHONY: help install colossalai schedulers demo check test fuzz audit release format catalogue docs docs-site benchmark constraints clean

help:
	@echo "make demo         train a small model on this machine, from the wizard to a text sample"
	@echo "make test         the gate: format, lint, types, tests"
	@echo "make check        of these, the first three"
	@echo "make fuzz         an hour of made-up files, logs and messages (SECONDS=60: a minute); prints its seeds"
	@echo "make audit        known vulnerabilities in the pinned versions, where their database can be reached"
	@echo "make release      sdist, wheel, their hashes and a bill of materials (SBOM, CycloneDX) in dist/"
	@echo "make format       let ruff format and fix what it can"
	@echo "make catalogue    collect the sentences into the translation catalogue and compile it"
	@echo "make docs         write docs/rules.md from the rules, and rules/proofs.py from the tests that prove them"
	@echo "make docs-site    run the lessons' code, and build the site in build/site; a broken link ends it"
	@echo "make benchmark    measure how long everything takes to begin, and write it into docs/performance.md"
	@echo "make colossalai   an environment for Colossal-AI, which needs older packages: --python .venv-colossalai/bin/python"
	@echo "make schedulers   an environment for the tests that let SkyPilot and Kubernetes' schemas read the files of jobs"
	@echo "make constraints  pin what .venv holds now in constraints.txt"
	@echo "make clean        delete what the targets above have made, .venv included"

install: $(READY) $(CATALOGUE).mo

# torch first and pinned: a later package that wants any torch must find it there. Where no GPU is, torch's CPU build
# saves gigabytes; pip takes it from the index that pytorch.org names, given by PIP_EXTRA_INDEX_URL.
$(READY): pyproject.toml constraints.txt docs/requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "trainwiz needs Python 3.10 or newer; name one: make PYTHON=…")'
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement docs/requirements-dev.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[causal-lm,sft,image-classification,tracking,metrics]'
	touch $@

# The editable install compiles it, too; this is for a .po file that changed since.
$(CATALOGUE).mo: $(CATALOGUE).po | $(READY)
	$(BIN)/python hatch_build.py

colossalai: $(COLOSSALAI)/.ready

# torch first, as above. colossalai is built against it, and installed without the packages that it declares.
$(COLOSSALAI)/.ready: docs/requirements-colossalai.txt constraints-colossalai.txt
	$(COLOSSALAI)/bin/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(COLOSSALAI)
	$(COLOSSALAI)/bin/python -m pip install --quiet --constraint constraints-colossalai.txt torch setuptools wheel
	$(COLOSSALAI)/bin/python -m pip install --quiet --constraint constraints-colossalai.txt --requirement docs/requirements-colossalai.txt
	$(COLOSSALAI)/bin/python -m pip install --quiet --constraint constraints-colossalai.txt --no-deps --no-build-isolation colossalai
	touch $@

schedulers: $(SCHEDULERS)/.ready

$(SCHEDULERS)/.ready: docs/requirements-schedulers.txt
	$(SCHEDULERS)/bin/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(SCHEDULERS)
	$(SCHEDULERS)/bin/python -m pip install --quiet --requirement docs/requirements-schedulers.txt
	touch $@

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

# tests/shares.py says what each of the four workers takes, tests/conftest.py in which order.
test: check $(CATALOGUE).mo
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5

SECONDS ?= 3600

fuzz: $(READY) $(CATALOGUE).mo
	$(BIN)/python tests/fuzz.py --seconds $(SECONDS)

AUDIT := .venv-audit

# An environment of its own, so that what looks at the pinned versions changes none of them.
$(AUDIT)/.ready:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet pip-audit cyclonedx-bom
	touch $@

audit: $(AUDIT)/.ready
	$(AUDIT)/bin/python tests/audit.py $(AUDIT)/bin/pip-audit constraints.txt constraints-colossalai.txt

release: audit $(READY) $(CATALOGUE).mo
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/trainwiz.cdx.json $(BIN)/python
	$(BIN)/python tests/bill.py dist/trainwiz.cdx.json
	cd dist && sha256sum * > SHA256SUMS

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

catalogue: $(READY)
	$(BIN)/python tests/catalogue.py
	$(BIN)/python hatch_build.py

benchmark: $(READY)
	$(BIN)/python benchmarks/startup.py

constraints: $(READY)
	$(BIN)/python tests/constraints.py

clean:
	rm -rf $(VENV) $(COLOSSALAI) $(SCHEDULERS) $(AUDIT) $(SITE) demo dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache

docs: $(READY) $(CATALOGUE).mo
	PYTHONPATH=tests $(BIN)/python tests/rules/proven.py
	TRAINWIZ_LANG=en $(BIN)/trainwiz explain --markdown > docs/rules.md.new
	mv docs/rules.md.new docs/rules.md

SITE := .venv-site

# An environment of its own: what builds the site is not needed to test trainwiz.
$(SITE)/.ready: docs/requirements-site.txt
	$(SITE)/bin/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --requirement docs/requirements-site.txt
	touch $@

docs-site: $(READY) $(SITE)/.ready $(CATALOGUE).mo
	$(BIN)/python docs/lessons/run.py --check
	TRAINWIZ_PYTHON=$(abspath $(BIN)/python) $(SITE)/bin/mkdocs build --config-file docs/site/mkdocs.yml

# The main job on embedded real data: 2 CPU ranks, whatever machine this is.
demo: install
	$(BIN)/trainwiz init demo --defaults --yes --force \
	  --set machine.device=cpu --set strategy.kind=ddp --set machine.num_processes=2 \
	  --set batch.real_batch_size=16 --set schedule.n_steps=250 --set optimizer.learning_rate=0.004
	$(BIN)/trainwiz launch demo
