"""What Triton kernels share: rows that are no padding, and exp as the host kernels compute it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def real_rows(real, has_real, rows):
    """How many leading rows are no padding: all if ``real`` is not stated."""
    stated = tl.load(real, mask=has_real != 0, other=rows)
    return tl.minimum(tl.maximum(stated, 0), rows)


@triton.jit
def exp(x):
    """exp of ``native/host/kernels/elementary.h``, step by step: within 1 ulp, the host's bits."""
    c = tl.maximum(tl.minimum(x, 89.0), -105.0)
    magic = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer
    n = tl.fma(c, tl.full(c.shape, 1.44269502162933349609375, tl.float32), tl.full(c.shape, magic, tl.float32)) - magic
    r = tl.fma(n, tl.full(c.shape, -0.693359375, tl.float32), c)
    r = tl.fma(n, tl.full(c.shape, 2.12194440e-4, tl.float32), r)
    p = tl.full(c.shape, 1.9875691500e-4, tl.float32)
    p = tl.fma(p, r, tl.full(c.shape, 1.3981999507e-3, tl.float32))
    p = tl.fma(p, r, tl.full(c.shape, 8.3334519073e-3, tl.float32))
    p = tl.fma(p, r, tl.full(c.shape, 4.1665795894e-2, tl.float32))
    p = tl.fma(p, r, tl.full(c.shape, 1.6666665459e-1, tl.float32))
    p = tl.fma(p, r, tl.full(c.shape, 5.0000001201e-1, tl.float32))
    y = tl.fma(p, r * r, r) + 1.0
    e = n.to(tl.int32)
    half = e >> 1  # 2^e in two factors, since e reaches from -151 to 128
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((e - half + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x == x, y * first * second, x)
