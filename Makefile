# `make demo` and `make test` set up .venv by themselves; a second run installs nothing.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all test-fast test-gpu test-newest-ray bench bench-gpu release-check lint format install clean

demo: $(STAMP)
	$(BIN)/tune-whisper --space lr_batch.yaml --trials 8

# Three files at a time, in the order of conftest.py: most tests wait for Ray's processes rather than compute.
# Those with Ray's dashboard run alone: it starts ten processes, and Ray waits for them at most 20 s.
TOGETHER := -n 3 --dist loadfile --no-loadscope-reorder --ignore tests/tune/remote/test_jobs.py

test: lint
	$(BIN)/python -m pytest $(TOGETHER) -m "not occasional"
	$(BIN)/python -m pytest -m "not occasional" tests/tune/remote/test_jobs.py

# With what is worth its time now and then: before an issue is called resolved.
test-all: lint
	$(BIN)/python -m pytest $(TOGETHER)
	$(BIN)/python -m pytest tests/tune/remote/test_jobs.py

# The tests that need a CUDA card, which the others do not see.
test-gpu: $(STAMP)
	TEST_GPU=1 $(BIN)/python -m pytest tests/trainer/training/test_gpu_step.py tests/trainer/model/test_greedy.py

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not occasional"

# Before a release: make release-check MODEL=FOLDER_OF_WHISPER_BASE DATA=TABLE LANGUAGE=German
release-check:
	tools/release_check.sh "$(MODEL)" "$(DATA)" "$(LANGUAGE)"

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,deepspeed,vertex,ctranslate2,ggml,8bit]'
	touch $@

# A small set of the speed benchmarks: 5 minutes on two quiet cores; benchmarks/README.md has the large ones.
bench bench-gpu: export HF_DATASETS_DISABLE_PROGRESS_BARS = 1
bench bench-gpu: export TRANSFORMERS_VERBOSITY = error

bench: $(STAMP)
	$(BIN)/python benchmarks/throughput.py --windows 30 8 --repeats 1 --clips 8 --steps 3
	$(BIN)/python benchmarks/search_speed.py --seeds 0 --trials 3 --epochs 1
	$(BIN)/python benchmarks/driver_time.py --trials 40

# On a CUDA card: real shapes with random weights.
bench-gpu: $(STAMP)
	$(BIN)/python -c "import torch, sys; sys.exit(None if torch.cuda.is_available() else 'make bench-gpu: PyTorch finds no CUDA card here; make bench is for CPUs')"
	for shape in tiny small large-v3; do \
		sizes="--batch 16 --eval-batch 16 --clips 48"; \
		test $$shape != large-v3 || sizes="--batch 8 --eval-batch 8 --clips 8"; \
		$(BIN)/python benchmarks/throughput.py --shape $$shape --windows 30 15 8 5 $$sizes --steps 20 || exit 1; \
	done

# The newest Ray, in an environment of its own (Google's SDK asks for an older one): searches on several workers,
# clusters that lose and gain nodes, trainings, jobs.
NEWEST := .venv-newest-ray
NEWEST_TESTS := tests/tune/cluster/test_ray_nodes.py tests/tune/runs/test_train_command.py tests/tune/remote/test_jobs.py

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
