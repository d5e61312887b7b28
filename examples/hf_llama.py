"""LlamaForCausalLM of transformers with a static cache: captured here, replayed by a process without PyTorch.

    python examples/hf_llama.py CORES [--device cuda]

The model is transformers' own, with random weights. Its cache is state of the core, written where the caller's
positions say; the mask is made of them too, so nothing that the model would count up in Python is frozen at capture.
What does not change any more is the cache's size: a core's context is that of its capture.
"""

from __future__ import annotations

import argparse
import inspect
import random
from array import array
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

from heliograph.capture import CaptureSpec, EntrySpec, Example, StateSpec, TensorSpec, capture
from heliograph.capture.again import Again
from heliograph.capture.environment import start_in_fixed_environment

ROWS, CONTEXT, CHUNK = 8, 256, 32  # sequences at once, tokens of each at most, tokens of a prompt at once
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]  # the second where there is no cuDNN
KNOWN = inspect.signature(LlamaForCausalLM.forward).parameters
CACHE = "cache" if "cache" in KNOWN else "past_key_values"  # renamed in transformers 5


class StateCache:
    """What a layer asks of transformers' caches, over tensors of ours: [layers, ROWS, kv heads, CONTEXT, width].

    sequences: i64[B], those of the batch; positions: i64[B, T]. ``leading``: the batch is sequences 0 to B - 1.
    """

    is_compileable = False

    def __init__(self, sequences: Tensor, positions: Tensor, keys: Tensor, values: Tensor, *, leading: bool) -> None:
        self._sequences, self._positions, self._leading = sequences, positions, leading
        self._stored = (keys, values)

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *rest: object, **more: object
    ) -> tuple[Tensor, Tensor]:
        """Stores [B, kv heads, T, width] of new tokens; returns [B, kv heads, CONTEXT, width] of all."""
        both = []
        for stored, new in zip(self._stored, (key, value), strict=True):
            by_token = stored[layer_idx].transpose(1, 2)
            by_token.index_put_((self._sequences[:, None], self._positions), new.transpose(1, 2))
            rows = len(self._sequences)
            layer = stored[layer_idx]
            both.append(layer[:rows] if self._leading else layer.index_select(0, self._sequences))
        return both[0], both[1]


def logits(model: LlamaForCausalLM, ids: Tensor, positions: Tensor, cache: StateCache) -> Tensor:
    """[B, T, V] of ids and positions i64[B, T]."""
    seen = torch.arange(CONTEXT, device=ids.device) <= positions[:, None, :, None]
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=ids.device).masked_fill(~seen, -torch.inf)
    given = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, "use_cache": True, CACHE: cache}
    if "cache_position" in KNOWN:  # left out, older releases would ask the cache how long it is
        given["cache_position"] = positions[0]
    with sdpa_kernel(ATTENTION, set_priority=True):
        return model(**given).logits


def decode(
    model: LlamaForCausalLM, *, ids: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> Mapping[str, Tensor]:
    """One token of each of the first R sequences: ids, positions i64[R]."""
    positions = positions[:, None]
    cache = StateCache(torch.arange(len(ids), device=ids.device), positions, keys, values, leading=True)
    return results(logits(model, ids[:, None], positions, cache)[:, 0])


def prefill(
    model: LlamaForCausalLM, *, ids: Tensor, start: Tensor, last: Tensor, sequence: Tensor, keys: Tensor, values: Tensor
) -> Mapping[str, Tensor]:
    """A chunk of T tokens of one sequence, from position ``start`` on; logits of token ``last`` of the chunk. What is
    behind that token is overwritten before anything looks at it."""
    positions = (start + torch.arange(len(ids), device=ids.device))[None]
    cache = StateCache(sequence, positions, keys, values, leading=False)
    return results(logits(model, ids[None], positions, cache)[0].index_select(0, last))


def results(logits: Tensor) -> dict[str, Tensor]:
    return {"logits": logits.float(), "sampled": logits.argmax(-1)}


def make(dtype: str = "bf16") -> tuple[LlamaForCausalLM, CaptureSpec]:
    """The model on the CPU, its weights random and different in every layer, and what to capture of it."""
    config = LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for number, (name, weight) in enumerate(model.named_parameters()):
        source = torch.Generator().manual_seed(1000 + number)
        scale = 0.1 if "norm" in name else 1.0 if "embed" in name else weight.shape[-1] ** -0.5
        weight.normal_(1.0 if "norm" in name else 0.0, scale, generator=source)
        weight.data = weight.to(DTYPES[dtype])  # not model.to(dtype): that rounds the rope's frequencies too
    memory = StateSpec((config.num_hidden_layers, ROWS, config.num_key_value_heads, CONTEXT, config.head_dim), dtype)
    token = {"low": 0, "high": config.vocab_size - 1}
    step = EntrySpec(
        "decode",
        buckets=tuple({"rows": rows} for rows in range(1, ROWS + 1)),
        inputs={
            "ids": TensorSpec(("rows",), "i64", **token),
            "positions": TensorSpec(("rows",), "i64", 0, CONTEXT - 1),
        },
        call=decode,
    )
    chunk = EntrySpec(
        "prefill",
        buckets=({"tokens": CHUNK},),
        inputs={
            "ids": TensorSpec(("tokens",), "i64", **token),
            "start": TensorSpec((1,), "i64", 0, CONTEXT - CHUNK),
            "last": TensorSpec((1,), "i64", 0, CHUNK - 1),
            "sequence": TensorSpec((1,), "i64", 0, ROWS - 1),
        },
        call=prefill,
    )
    spec = CaptureSpec(
        "llama",
        (step, chunk),
        state={"keys": memory, "values": memory},
        numerics="fast",
        examples=partial(example, config.vocab_size),
    )
    return model, spec


def example(vocabulary: int, entry: str, bucket: Mapping[str, int], seed: int) -> Example:
    """Inputs of a bucket; the same for the same seed."""
    draw = random.Random(f"{entry} {sorted(bucket.items())} {seed}")
    count = bucket["rows" if entry == "decode" else "tokens"]
    columns = {"ids": [draw.randrange(vocabulary) for _ in range(count)]}
    if entry == "decode":
        columns["positions"] = [draw.randrange(CONTEXT) for _ in range(count)]
    else:
        columns["start"] = [draw.randrange(CONTEXT - CHUNK + 1)]
        columns["last"] = [draw.randrange(CHUNK)]
        columns["sequence"] = [draw.randrange(ROWS)]
    return Example({name: array("q", values).tobytes() for name, values in columns.items()})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cores", type=Path)
    options.add_argument("--device", choices=("host", "cuda"), default="host")
    given = options.parse_args()
    if given.device == "cuda":
        start_in_fixed_environment()
    dtype = "bf16" if given.device == "cuda" else "f32"
    again = Again(f"{Path(__file__).resolve()}:make", (dtype,)) if given.device == "cuda" else None
    core = capture(*make(dtype), cores=given.cores, device=given.device, again=again, consume=True)
    print(f"captured {core.name}")


if __name__ == "__main__":
    main()
