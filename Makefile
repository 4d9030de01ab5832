.DEFAULT_GOAL := help
BIN := .venv/bin
INSTALLED := .venv/installed
# tests start some hundred processes; without stored bytecode each of them compiles the package again
unexport PYTHONDONTWRITEBYTECODE
# tests go to whichever worker is free, in the order of tests/conftest.py; those of a group, which share something
# expensive, to the same one
PYTEST := $(BIN)/python -m pytest --dist loadgroup --no-loadscope-reorder

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

# a learning rate ten times too small, for all three
demo: $(INSTALLED) ## install, run FedAvg, PAGE and page-shared on real digits, print the path of their report
	@rm -rf runs/demo
	@for players in fixed page page-shared; do $(BIN)/pagefl run --task digits --players $$players \
	  --lr 0.01 --epochs 1 --rounds 60 --out runs/demo/$$players || exit; done
	@$(BIN)/pagefl report runs/demo/fixed runs/demo/page runs/demo/page-shared --out runs/demo/report.html

console: $(INSTALLED) ## the live web console of runs/, on http://127.0.0.1:8765
	$(BIN)/pagefl console runs

# more workers than cores: those that wait for the processes of a deployment leave theirs to others
test: $(INSTALLED) chromium ## install, and run the whole suite
	$(PYTEST) -n 4

check: $(INSTALLED) ## format, lint, types and every test that is not slow
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory -j2 types fast

# mypy is one process: tests run beside it
types: $(INSTALLED)
	$(BIN)/mypy

fast: $(INSTALLED)
	$(PYTEST) -n 2 -q -m "not slow"

format: $(INSTALLED) ## write the code as the formatter wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/docs ## the documentation site, in build/docs: every warning is an error, notebooks are executed
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	$(BIN)/sphinx-build -q -W --keep-going -D nb_execution_mode=off -b linkcheck docs build/links
	@echo "docs: build/docs/index.html"

release: .venv/release ## wheel and sdist, in dist
	rm -rf dist build/lib
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

bench: $(INSTALLED) ## the engine against a plain loop, on this machine
	$(BIN)/pagefl bench engine

chromium: ## the browser that looks at reports in tests
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no chromium: the tests that look at pages will be skipped"

.venv/docs .venv/release: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e '.[$(@F)]'
	@touch $@

# torch goes first and alone, or the resolver may fetch its CUDA build
$(INSTALLED): pyproject.toml constraints.txt
	python3 -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[test,dev]'
	@touch $@

.PHONY: help demo console test check types fast format docs release bench chromium
