# `make help` lists what there is. Variables:
#   LINE=tf1|tf2              one TensorFlow line instead of both (demo: instead of the first that is there, tf2 before tf1)
#   STRICT=1                  a line whose Python is missing is an error
#   PYTHON_TF1=, PYTHON_TF2=  the interpreters, if they are not to be searched for
#   ARGS=                     more arguments for pytest
export LINE STRICT PYTHON_TF1 PYTHON_TF2
# Where bytecode may not be kept, each of the many processes of the tests compiles TensorFlow anew, for seconds.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
PYTEST = python -m pytest $$ONCE $(ARGS)
# Two of them on each line: much of what workers do is waiting for one another.
TESTS = $(PYTEST) -m not\ alone
ALONE = $(PYTEST) -m alone
HOSTS = tests/multiproc/test_hosts.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-nightly test-random test-mutants test-verify test-multiproc lint format site wheels csrc clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16
	@echo; sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

setup: ## make the environments .venv/tf1 and .venv/tf2, native part included
	@scripts/together.sh 'python -c "import sys, tensorflow as tf; print(\"Python %d.%d, TensorFlow\" % sys.version_info[:2], tf.__version__)" 2>/dev/null'

demo: ## train on handwritten digits with two workers, evaluate the checkpoint without EPL
	@scripts/lines.sh --first scripts/demo.sh

test: ## all tests, quick ones first
	@scripts/setup_others.sh
	@scripts/together.sh 'scripts/side_by_side.sh "$(TESTS) tests/unit tests/faults" "$(TESTS) tests/numerics tests/multiproc"'
	@scripts/together.sh 'scripts/side_by_side.sh "$(ALONE) $(HOSTS) tests/faults" "$(ALONE) --ignore $(HOSTS) tests/multiproc"'

test-nightly: ## only the tests that train long to show that something is learnt
	@scripts/lines.sh 'python -m pytest --nightly -m nightly $(ARGS)'

test-all: ## all tests, the nightly ones and every combination included; takes hours
	@$(MAKE) test ARGS='$(ARGS) --exhaustive'
	@$(MAKE) test-random ARGS=

test-random: ## random models in random layouts with random options: 500 of them, on each line (ARGS='--count 30')
	@scripts/lines.sh 'python -m tests.draws $(ARGS)' 'python -m tests.drawn_options $(ARGS)'

test-mutants: ## plant 200 faults in the code, one at a time, and name those that no unit test finds; half an hour
	@scripts/lines.sh --first 'python -m tests.mutants $(ARGS)'

test-verify: ## plant 200 faults in compiled graphs: how many does epl.verify find, and name the operation? Half an hour
	@scripts/lines.sh --first 'python -m tests.mutants.compared $(ARGS)'

test-multiproc: ## only the tests with several worker processes
	@scripts/setup_others.sh
	@scripts/lines.sh '$(PYTEST) tests/multiproc tests/faults'

lint: ## errors, house rules, format
	@scripts/lint.sh

format: ## format Python and C++
	@scripts/setup_env.sh lint
	@.venv/lint/bin/ruff check -q --select I --fix . && .venv/lint/bin/ruff format .
	@git ls-files -co --exclude-standard 'csrc/*.h' 'csrc/*.cc' | xargs -r .venv/lint/bin/clang-format -i

site: ## build the pages of docs/, the examples' and a reference of all public names into build/site
	@scripts/setup_env.sh docs
	@.venv/docs/bin/python scripts/translations.py --check
	@.venv/docs/bin/python scripts/check_manifests.py
	@.venv/docs/bin/mkdocs build --strict
	@echo "build/site/index.html: open it in a browser; no server is needed"

wheels: ## make a wheel for each line in dist/, and try it in a fresh environment (minutes)
	@scripts/lines.sh 'scripts/wheels.sh'

csrc: ## build the native part in place
	@scripts/lines.sh 'python epl/communicators/build.py'

clean: ## remove what was built; the environments stay
	rm -rf build dist *.egg-info epl/communicators/lib .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
