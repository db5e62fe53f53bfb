# `make demo` and `make test` set up .venv by themselves; a second run installs nothing.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-fast test-newest-ray lint format install clean

demo: $(STAMP)
	$(BIN)/tune-whisper --space lr_batch.yaml --trials 8

# Three files at a time, in the order of conftest.py: most tests wait for Ray's processes rather than compute.
test: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)

# torch goes first: a CPU machine wants the CPU build that the constraints name, not the newest one.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,deepspeed,vertex,ctranslate2,ggml,onnx]'
	touch $@

# The newest Ray, in an environment of its own (Google's SDK asks for an older one): searches on several workers,
# clusters that lose and gain nodes, trainings, jobs.
NEWEST := .venv-newest-ray
NEWEST_TESTS := tests/test_worker_group.py tests/test_ray_nodes.py tests/test_train_command.py tests/test_jobs.py

test-newest-ray: $(NEWEST)/.installed
	$(NEWEST)/bin/python -m pytest $(NEWEST_TESTS)

$(NEWEST)/.installed: pyproject.toml constraints.txt
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	grep -v '^ray==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(NEWEST)/constraints.txt torch
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(NEWEST)/constraints.txt --upgrade \
		'ray[default,train,tune]' -e '.[dev,deepspeed]'
	touch $@

clean:
	rm -rf $(VENV) $(NEWEST) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
