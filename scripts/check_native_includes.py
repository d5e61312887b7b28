"""C++ layers: drivers include driver.h, never each other; kernels include kernel headers only.

error.h < driver.h < host_*, cuda_* (independent) < bind*, module files
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "native"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def layer(name: str) -> str:
    if name.startswith("host/"):
        return "kernel"
    if name.startswith("bind") or name.endswith(("module.cpp", "_bindings.cpp")):
        return "bindings"
    return name.split("_")[0] if name.startswith(("host_", "cuda_")) else "shared"


ALLOWED = {
    "shared": {"shared"},
    "host": {"shared", "host", "kernel"},
    "cuda": {"shared", "cuda"},
    "kernel": {"kernel"},
    "bindings": {"shared", "host", "cuda", "kernel", "bindings"},
}


def main() -> int:
    broken = []
    for path in sorted(ROOT.rglob("*")):
        if path.suffix not in {".h", ".cpp"}:
            continue
        name = path.relative_to(ROOT).as_posix()
        for include in INCLUDE.findall(path.read_text()):
            places = (path.parent / include, ROOT / include, ROOT / "host" / include)
            target = next((place for place in places if place.is_file()), None)
            if target is None:
                continue  # a header of the toolchain
            other = target.resolve().relative_to(ROOT.resolve()).as_posix()
            if layer(other) not in ALLOWED[layer(name)]:
                broken.append(f"native/{name} ({layer(name)}) includes {other} ({layer(other)})")
    print("\n".join(broken) if broken else "native includes: layers hold")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
