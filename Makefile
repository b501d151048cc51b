# Two commands for everyone: make demo, make test. The environment makes itself.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
# A file's tests share what is slow to make, so they stay in one process; each has one thread.
# One process more than processors, as tests of whole federations wait for each other; four at most.
# The order of files is tests/conftest.py's. Processes that tests start share compiled modules.
PROCESSES := $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); [ $$n -lt 4 ] && echo $$((n + 1)) || echo 4)
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
# What runs on a device and beside the broker, tested where neither PyTorch nor onnx is found.
LEAN := tests/edge tests/coordinator
STAMP := $(VENV)/.installed
# The page for browsers. Node 20 or newer builds and tests it; where the system has none, the
# environment gets one.
WEB := src/protofleet/hub/page/index.html
WEB_SOURCES := $(wildcard src/web/*.json src/web/*.mjs) $(shell find src/web/src -type f)
MODULES := src/web/node_modules/.package-lock.json
NODE_PATH_FIRST := PATH="$(abspath $(BIN)):$$PATH"
HAS_NODE := $(NODE_PATH_FIRST) node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null

.PHONY: demo web test quick slow mutants oracles check docs format bench fuzz audit aarch64 pythons wheel dist clean

demo: $(STAMP) $(if $(findstring --browsers,$(ARGS)),$(WEB)) ## a fleet of device processes learns over a real broker; ARGS="--data uci-har …"
	$(BIN)/protofleet demo $(ARGS)

web: $(WEB) ## the page for browsers, into src/protofleet/hub/page (docs/phone.md)

test: $(STAMP) $(WEB) ## every test that this machine can run; the kernels' also as plain Python
ifneq ($(ARGS),)
	$(PYTEST) $(ARGS)
else
	$(PYTEST) $(LEAN:%=--ignore=%)
	PYTHONPATH=$(CURDIR)/tests/support/without_export $(PYTEST) $(LEAN)
	NUMBA_DISABLE_JIT=1 $(PYTEST) tests/kernels
endif

# Everything in tests/export is slow; without it hardly a process loads PyTorch.
quick: $(STAMP) $(WEB) ## the tests that are not marked slow: five minutes on two cores
	$(PYTEST) -m "not slow and not full_size" --ignore=tests/export $(ARGS)

slow: $(STAMP) ## models of the papers' sizes, clusters, the demonstration and tutorials, whose smaller cases make test has; half an hour with the data sets
	$(PYTEST) -m full_size $(ARGS)

mutants: $(STAMP) ## do the tests catch faults? some drawn at random; ARGS="--count 8 --seed 1 --only wire"; hours
	$(BIN)/python scripts/mutants $(ARGS)

oracles: $(STAMP) ## how far each method's rounds are from its oracle's in float64, as a table (docs/algorithms.md)
	PROTOFLEET_ORACLES=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/strategies -k are_those_of $(ARGS)

check: $(STAMP) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP) ## the site, into site/; a link that leads nowhere is an error
	$(BIN)/python scripts/docs

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## measured comparisons; minutes
	$(BIN)/protofleet bench all $(ARGS)

fuzz: $(STAMP) ## altered inputs for every decoder, guided by coverage; ARGS="--seconds 60 --only blob" (docs/fuzzing.md)
	@$(BIN)/python -c "import atheris" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fuzz]"
	nice -n 10 $(BIN)/python scripts/fuzz $(ARGS)

audit: $(STAMP) ## licences of the pinned packages, and known vulnerabilities where a service can be asked
	$(BIN)/python scripts/audit $(ARGS)

# What runs on devices and beside the broker; PyTorch's tests have one Python.
PYTHONS ?= $(foreach minor,12 13 14,$(shell command -v python3.$(minor) 2>/dev/null))
IN_EACH := tests/edge tests/coordinator tests/wire tests/tensors tests/broker tests/e2e/test_releases.py

pythons: ## those tests with other versions of Python; PYTHONS="/path/to/python3.13 …", default: those found
	@for python in $(PYTHONS); do \
	  folder=$$(mktemp -d); echo "== $$($$python --version) ..."; \
	  $$python -m venv $$folder && \
	  $$folder/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
	    -e ".[edge,litert,coordinator,hub,recordings]" hypothesis pytest pytest-timeout pytest-xdist \
	    safetensors scikit-learn && \
	  OMP_NUM_THREADS=1 $$folder/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadfile \
	    $(IN_EACH) $(ARGS) || exit 1; \
	  rm -rf $$folder; \
	done

aarch64: $(STAMP) ## an emulated Raspberry Pi joins a federation; minutes (docs/raspberry-pi.md)
	$(BIN)/python scripts/aarch64 $(ARGS)

wheel: $(STAMP) $(WEB) ## the package as one file under dist/, for devices: no index has it
	@rm -rf build
	$(BIN)/python -m build --wheel >build.log || { cat build.log; exit 1; }
	@rm -f build.log; ls dist/*.whl

dist: $(STAMP) $(WEB) ## for a release: the source archive, and the wheel made of it, under dist/
	@rm -rf build dist
	$(BIN)/python -m build >build.log || { cat build.log; exit 1; }
	@rm -f build.log; ls dist/*

clean:
	rm -rf build dist site $(VENV) *.egg-info src/protofleet/hub/page src/web/node_modules

$(WEB): $(WEB_SOURCES) $(MODULES)
	cd src/web && $(NODE_PATH_FIRST) npm run --silent build

$(MODULES): src/web/package-lock.json | $(STAMP)
	@$(HAS_NODE) || { echo "No Node 20 or newer here: one goes into $(VENV) ..."; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[node]"; }
	cd src/web && $(NODE_PATH_FIRST) npm ci --no-audit --no-fund --loglevel error

# torch comes first and exactly: a looser request may fetch gigabytes of GPU packages. Python compiles
# what it imports; pip would compile all that there is, for a third of the time.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  "protofleet needs Python 3.11 or newer, got %d.%d: make PYTHON=/path/to/python3" % v[:2])'
	@echo "Making the environment $(VENV) (some minutes, about 2.5 GB) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile "torch==2.13.0" -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[all,dev]"
	@touch $(STAMP)
