"""``rope(x f32[T, H, D], positions i32[T], inv_freq f32[rot/2], interleaved, real i32[1]?) -> f32[T, H, D]``: rotary
positions. Tokens from ``real`` on are padding.

The first ``rot`` elements of each head are turned in pairs, pair i by the angle f32(positions[t]) * inv_freq[i] in
f32; the rest of the head is copied. Pairs are (i, i + rot/2), the convention of Hugging Face, or (2i, 2i + 1) when
``interleaved``, the convention of GGUF Llama files. Sine and cosine are within 1.6 ulp for every angle.

Tolerance: ERROR times the length of the pair, for the angle as rounded to f32.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers

ERROR = 2.0**-21
MAX_PAIRS = 512

PARAMS = ParamBlock(
    ("x", "ptr"), ("positions", "ptr"), ("inv_freq", "ptr"), ("real", "ptr"), ("out", "ptr"),
    ("token_stride", "u64"), ("head_stride", "u64"), ("tokens", "u32"), ("heads", "u32"), ("dim", "u32"),
    ("rotated", "u32"),
)  # fmt: skip
HALF = Kernel("rope", "rope_half", PARAMS)
INTERLEAVED = Kernel("rope", "rope_interleaved", PARAMS)
KERNELS = (HALF, INTERLEAVED)


@lowers("heliograph.rope.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("rope", ("x", "positions", "inv_freq", "interleaved", "real"), args, keywords)
    x, inv_freq = call.view("x", "f32", 3), call.vector("inv_freq", "f32")
    tokens, heads, dim = x.shape
    pairs = inv_freq.shape[0]
    call.require(
        2 * pairs <= dim and pairs <= MAX_PAIRS, f"{pairs} pairs", f"at most {MAX_PAIRS} pairs that fit a head of {dim}"
    )
    token_stride, head_stride = call.strides("x", x)
    recorder.launch(
        INTERLEAVED if call.flag("interleaved") else HALF, tokens if heads * dim else 0, x=x,
        positions=call.vector("positions", "i32", tokens), inv_freq=inv_freq, real=call.real(), out=outs[0],
        token_stride=token_stride, head_stride=head_stride, tokens=tokens, heads=heads, dim=dim, rotated=2 * pairs,
    )  # fmt: skip
