"""All Triton kernels compile for the targets that we serve, and one binary of each serves every bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
KERNELS = {
    "add_f32", "clear_padding_f32", "embedding_plain", "gather_rows_f32", "history_store_i32", "kv_store_f16",
    "linear_plain", "paged_attention_f16", "resolve_ids_i32", "rms_norm_f32", "rope_f32", "sample_f32", "silu_mul_f32",
}  # fmt: skip


@pytest.mark.parametrize("sm", [90])
def test_one_binary_of_each_kernel_serves_every_bucket(tmp_path: Path, sm: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "ops.compile_triton", str(sm)], cwd=TESTS, stdout=subprocess.PIPE, check=True,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    binaries = json.loads(done.stdout)
    assert binaries.pop("control") > 1  # so it would be seen
    assert binaries == dict.fromkeys(KERNELS, 1)
