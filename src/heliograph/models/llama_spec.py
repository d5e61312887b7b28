"""What serving captures of a Llama: decode and prefill, everything the caller fills and reads, the state.

The inputs are complete from the first core on: a front that uses only some of them leaves the others at the values
that :mod:`heliograph.runtime.steps` shows. One sampled row is one request; its slot is its place in ``history``
and ``last_token`` for as long as it lives. Real rows come first and ``real`` says how many they are; a padding row has
position -1 (a token) and slot -1 (a sampled row) besides, and costs next to nothing. Of sampled padding rows the ids
are -1, logits and logprobs 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from heliograph.capture.spec import CaptureSpec, EntrySpec, StateSpec, TensorSpec, TextSpec
from heliograph.models.llama import Llama, LlamaConfig, Places, ops
from heliograph.models.llama_examples import example
from heliograph.models.model_text import ModelText
from heliograph.models.serving import Serving
from heliograph.ops.sample import BIASES


def sampling_inputs(rows: int | str) -> dict[str, TensorSpec]:
    """What decides the sampled tokens of ``rows`` requests, and nothing else does."""
    return {
        "slots": TensorSpec((rows,), "i32"),
        "lengths": TensorSpec((rows,), "i32"),  # tokens of the row's history that penalties see
        "prompts": TensorSpec((rows,), "i32"),  # the first of these, which were not generated
        "temperature": TensorSpec((rows,), "f32"),  # 0: the most likely token, the lowest id among equals
        "top_k": TensorSpec((rows,), "i32"),  # 0: all
        "top_p": TensorSpec((rows,), "f32"),
        "min_p": TensorSpec((rows,), "f32"),
        "presence": TensorSpec((rows,), "f32"),
        "frequency": TensorSpec((rows,), "f32"),
        "repetition": TensorSpec((rows,), "f32"),  # 1: none
        "bias_ids": TensorSpec((rows, BIASES), "i32"),  # -1: unused
        "bias_values": TensorSpec((rows, BIASES), "f32"),
        "mask_index": TensorSpec((rows,), "i32"),  # into `masks`; -1: every token is allowed
        "seed": TensorSpec((rows,), "i64"),
        "sample_position": TensorSpec((rows,), "i32"),  # of the token to be sampled
        "logprob_count": TensorSpec((rows,), "i32"),
    }


NONE, ZERO, ONE, INDEX = range(4)  # rows of step_numbers


def step_numbers(serving: Serving) -> Tensor:
    """i32[4, N] for the model's buffer ``numbers``: -1, 0, 1, and 0 to N - 1, for the rows or tokens of any bucket.

    Made in each step they would take kernels of PyTorch's own. On a GPU the padding of their parameters is whatever the
    stack held, so that two captures of one model could differ.
    """
    largest = max(serving.concurrency, *serving.prefill_buckets)
    count = -(-largest // 16) * 16
    rows = torch.full((count,), -1), torch.zeros(count), torch.ones(count), torch.arange(count)
    return torch.stack([row.to(torch.int32) for row in rows])


def llama_spec(config: LlamaConfig, text: ModelText, serving: Serving) -> CaptureSpec:
    """The capture spec of a model with its text."""
    decode = EntrySpec(
        "decode",
        buckets=tuple({"rows": rows} for rows in serving.decode_rows),
        inputs={
            "ids": TensorSpec(("rows",), "i32"),  # -1: the row's last sampled token
            "positions": TensorSpec(("rows",), "i32"),
            "tables": TensorSpec(("rows", serving.blocks), "i32"),
            "real": TensorSpec((1,), "i32"),  # rows that are no padding
            **sampling_inputs("rows"),
        },
        call=decode_step,
    )
    prefill = EntrySpec(
        "prefill",
        buckets=tuple({"tokens": tokens} for tokens in serving.prefill_buckets),
        inputs={
            "ids": TensorSpec(("tokens",), "i32"),
            "positions": TensorSpec(("tokens",), "i32"),
            "tables": TensorSpec((1, serving.blocks), "i32"),
            "real": TensorSpec((1,), "i32"),  # tokens that are no padding
            "last_row": TensorSpec((1,), "i32"),  # of the chunk's last real token
            **sampling_inputs(1),
        },
        call=prefill_step,
    )
    return CaptureSpec(
        model=config.architecture,
        entries=(decode, prefill),
        state={
            "kv": StateSpec(
                (config.layers, 2, config.kv_heads, serving.block_tokens, config.head_width), "f16", grows=True
            ),
            "history": StateSpec((serving.concurrency, serving.context), "i32"),
            "last_token": StateSpec((serving.concurrency,), "i32"),
        },
        shared={"masks": TensorSpec((serving.masks, -(-config.vocabulary // 32)), "i32")},
        units=serving.example_units,
        text=TextSpec(
            tokenizer=text.tokenizer, chat_template=text.chat_template, bos=text.bos, eos=text.eos,
            vocabulary=config.vocabulary, context=serving.context, block_tokens=serving.block_tokens,
            concurrency=serving.concurrency, bos_text=text.bos_text, eos_text=text.eos_text,
        ),
        examples=partial(example, config, serving),
    )  # fmt: skip


def decode_step(
    model: Llama, *, ids: Tensor, positions: Tensor, tables: Tensor, real: Tensor, slots: Tensor, masks: Tensor,
    kv: Tensor, history: Tensor, last_token: Tensor, **sampling: Tensor,
) -> Mapping[str, Tensor]:  # fmt: skip
    """One token of each of R sequences, sequence r in row r."""
    rows = model.numbers[INDEX, : ids.shape[0]]
    ids = ops.resolve_ids(ids, slots, last_token)
    ops.history_store(ids, slots, positions, history)
    x = model(ids, Places(positions, rows, tables, real), kv)
    logits = model.logits(x, real)
    ops.clear_padding(logits, real)
    return _sample(model, logits, slots, masks, history, last_token, real, **sampling)


def prefill_step(
    model: Llama, *, ids: Tensor, positions: Tensor, tables: Tensor, real: Tensor, last_row: Tensor, slots: Tensor,
    masks: Tensor, kv: Tensor, history: Tensor, last_token: Tensor, **sampling: Tensor,
) -> Mapping[str, Tensor]:  # fmt: skip
    """A chunk of one sequence. What is sampled after its last token counts only if the prompt ends there."""
    tokens = ids.shape[0]
    token_slots = _repeated(model, slots, tokens)
    ids = ops.resolve_ids(ids, token_slots, last_token)
    ops.history_store(ids, token_slots, positions, history)
    rows = model.numbers[ZERO, :tokens]
    x = model(ids, Places(positions, rows, tables, real), kv)
    logits = model.logits(ops.gather_rows(x, last_row))
    return _sample(model, logits, slots, masks, history, last_token, None, **sampling)


def _repeated(model: Llama, values: Tensor, count: int) -> Tensor:
    """The first of ``values`` so many times: it resolves ids that are not known, all in slot 0."""
    numbers = model.numbers[:, :count]
    repeated: Tensor = ops.resolve_ids(numbers[NONE], numbers[ZERO], values)
    return repeated


def _sample(
    model: Llama, logits: Tensor, slots: Tensor, masks: Tensor, history: Tensor, last_token: Tensor,
    real: Tensor | None, *, lengths: Tensor, prompts: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor,
    min_p: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor, bias_ids: Tensor, bias_values: Tensor,
    mask_index: Tensor, seed: Tensor, sample_position: Tensor, logprob_count: Tensor,
) -> Mapping[str, Tensor]:  # fmt: skip
    sampled, logprobs, logprob_ids = ops.sample(
        logits, slots, lengths, prompts, temperature, top_k, top_p, min_p, presence, frequency, repetition, bias_ids,
        bias_values, mask_index, masks, seed, sample_position, logprob_count, history, last_token, real,
    )  # fmt: skip
    accepted = _repeated(model, model.numbers[ONE], slots.shape[0])
    return {
        "sampled": sampled,
        "accepted": accepted,  # tokens a row advances by; more than one with speculation
        "logprobs": logprobs,  # of the sampled token, then of the most likely ones
        "logprob_ids": logprob_ids,
        "logits": logits,
    }
