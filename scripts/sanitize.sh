#!/usr/bin/env bash
# Builds the host driver with a sanitizer, in a folder of its own, and runs tests under it.
#
#   scripts/sanitize.sh thread    the worker pool and its queues, in C++ and without the fixed-address arena
#   scripts/sanitize.sh address   the same, then the conformance suite on an extension built with the sanitizer
#
# The thread sanitizer's own memory lies where the arena does, so it covers the pool only.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-}
if [[ $kind != thread && $kind != address ]]; then
  sed -n '2,7p' "$0"
  exit 2
fi
build=build/sanitize-$kind
mkdir -p "$build"
compiler=${CXX:-g++}

pool=(native/host_pool.cpp native/host_schedule.cpp native/host_queue.cpp native/host_status.cpp native/host_worker.cpp)
"$compiler" -std=c++20 -O1 -g -fno-omit-frame-pointer "-fsanitize=$kind" -Wall -Wextra -Inative \
  -o "$build/native_pool_test" tests/conformance/native_pool_test.cpp "${pool[@]}" -lpthread
TSAN_OPTIONS=halt_on_error=1 "$build/native_pool_test"
[[ $kind == thread ]] && exit 0

# The package with this extension: the sources, the kernel modules as they are, and no editable install (-S).
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cmake -S . -B "$build/extension" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DHELIOGRAPH_SANITIZE=address \
  -DHELIOGRAPH_HOST_KERNELS=OFF -DPython_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null
cmake --build "$build/extension" >/dev/null
package=$build/package/heliograph
rm -rf "$package" && mkdir -p "$package"
ln -s "$PWD"/src/heliograph/* "$package/"
ln -s "$PWD/$build"/extension/_native*.so "$site/heliograph/_kernels" "$package/"
preload=$("$compiler" -print-file-name=libasan.so):$("$compiler" -print-file-name=libstdc++.so)
LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0:handle_segv=0 \
  PYTHONPATH="$build/package:$site" .venv/bin/python -S -m pytest -q -p no:cacheprovider -k "not fake-cuda" \
  tests/conformance/test_memory.py tests/conformance/test_graphs.py tests/conformance/test_streams.py \
  tests/conformance/test_capture.py tests/device/test_modules.py \
  --deselect tests/device/test_modules.py::test_4000_modules_each_run_their_own_code
