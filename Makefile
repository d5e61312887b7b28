build:
	flock build.lock .venv/bin/pip install -q --no-build-isolation --no-deps -e .
