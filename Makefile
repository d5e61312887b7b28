# The one door: make demo | test | check | bench | peer | mutants | test-gpu. Each sets up what it needs.
#
# Two environments: .venv has everything (capture, tests, checks); .venv-serve has what serving needs and no torch.
# PYTHON names the interpreter that makes them (3.11 or newer).

PYTHON ?= python3
PIP     = .venv/bin/pip install --quiet --disable-pip-version-check
SOURCES = CMakeLists.txt pyproject.toml native/find_cuda_headers.py $(wildcard native/*.cpp native/*.h native/host/*.h \
          native/host/kernels/*.cpp native/host/kernels/*.h)
HEADERS = nvidia-cuda-runtime==13.0.* nvidia-cuda-cupti==13.0.* nvidia-cuda-crt==13.0.*

.PHONY: demo test check bench peer mutants test-gpu build clean

demo: build
	.venv/bin/python scripts/demo.py

test: build .venv-serve/.done
	.venv/bin/python scripts/test.py $(PYTEST)

check: build
	scripts/check

bench: build .venv-serve/.done peer
	.venv/bin/python scripts/bench.py

# llama-server, which the serving benchmarks are measured beside; about five minutes, once
peer: .venv/.done
	.venv/bin/python scripts/peer.py

mutants: build
	.venv/bin/python scripts/mutants.py

test-gpu: build
	.venv/bin/python scripts/gpu_acceptance.py --also accuracy ops $(GPU)

# ---- set-up ------------------------------------------------------------------------------------------------------
build: .venv/.built

.venv/.done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Heliograph needs Python 3.11 or newer; set PYTHON=python3.x") if sys.version_info < (3, 11) else None'
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) torch==2.13.0
	$(PIP) --group test --group check "scikit-build-core>=1.1" "nanobind>=3.1" "cmake>=3.20" ninja $(HEADERS)
	touch $@

# The editable install compiles the extension and the kernel modules; Python files are used from src/.
.venv/.built: .venv/.done $(SOURCES)
	flock build.lock $(PIP) --no-build-isolation --editable ".[capture]"
	touch $@

# An environment without torch, with the package installed as its users install it.
.venv-serve/.done: .venv/.built $(shell find src -name '*.py' -not -path '*/.*')
	test -x .venv-serve/bin/python || $(PYTHON) -m venv .venv-serve
	rm -rf build/wheel && flock build.lock .venv/bin/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheel .
	.venv/bin/pip --quiet --disable-pip-version-check --python .venv-serve/bin/python install --force-reinstall --no-deps build/wheel/*.whl
	.venv/bin/pip --quiet --disable-pip-version-check --python .venv-serve/bin/python install build/wheel/*.whl
	touch $@

clean:
	rm -rf build .venv .venv-serve build.lock
