"""Prints the include folder that holds cuda.h, cupti.h and crt/host_defines.h: the header wheels', else CUDA_HOME's.

Never a mixture: headers of two releases disagree about struct layouts.
"""

import os
import sys
from pathlib import Path

NEEDED = ("cuda.h", "cupti.h", "crt/host_defines.h")
candidates = [Path(entry) / "nvidia" / "cu13" / "include" for entry in sys.path if entry]
if home := os.environ.get("CUDA_HOME"):
    candidates += [Path(home) / "include", Path(home) / "extras" / "CUPTI" / "include"]
for folder in candidates:
    if all((folder / name).is_file() for name in NEEDED):
        print(folder)
        break
else:
    sys.exit(
        "CUDA headers: found no folder with " + ", ".join(NEEDED) + ". Install nvidia-cuda-runtime, nvidia-cuda-cupti "
        "and nvidia-cuda-crt 13.0 into the build environment, or set CUDA_HOME to a toolkit that has all three."
    )
