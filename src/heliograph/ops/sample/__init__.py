"""``sample(logits f32[R, V], slots, lengths, prompts, temperature, top_k, top_p, min_p, presence, frequency,
repetition, bias_ids i32[R, 32], bias_values f32[R, 32], mask_index, masks i32[P, ceil(V/32)], seed i64[R],
sample_position, logprob_count, history i32[slots, context], last_token i32[slots], real i32[1]?) -> (ids i32[R],
logprobs f32[R, 21], logprob_ids i32[R, 20])``

All that decides a token, one row at a time; what is not given a type above is [R] of i32, or of f32 for temperature,
top-p, min-p and the penalties. A row reads nothing of another row.

Of a row from ``real`` on, and of one whose slot is -1 (or outside the table), the id is -1, the logprobs are 0 and
their ids -1, and no state is written. Any other row:

1. A logit that is NaN counts as minus infinity, plus infinity as the largest number.
2. **Logprobs** come first: logit - max - log(sum(exp(logit - max))). Row 0 of the result is that of the token chosen
   below; the next ``logprob_count`` (at most 20) are the largest, ids beside them, equals by ascending id; unused
   places are 0 and -1.
3. **Penalties** as OpenAI and vLLM define them. Of a token among history[slot, :length], x is divided by
   ``repetition`` if positive and multiplied otherwise (a repetition of 0 or less counts as 1). Of one that was
   generated, c > 0 times among history[slot, prompt:length], it then is x - frequency * c - presence.
4. **Bias**: bias_values[i] is added to token bias_ids[i]; ids outside the vocabulary are unused places.
5. **Mask**: mask_index names a row of ``masks``, bit v % 32 of word v // 32 allows token v; -1 (or outside the
   pool) allows all. What is not allowed becomes minus infinity.
6. **Greedy** if temperature <= 0, or if no token is allowed: the largest logit, the lowest id among equals.
7. Otherwise the tokens stand in order of logit, largest first, equals by ascending id, with masses
   exp((x - max) / temperature). **top-k** keeps the first k (k <= 0: all). **top-p** keeps the fewest first whose
   mass reaches top_p of the mass that top-k left, at least one (top_p >= 1: all). **min-p** keeps masses of at least
   min_p times the largest (min_p <= 0: all).
8. **The draw**: u = 53 bits of Philox4x32-10 with key seed and counter (sample_position, 0, 0, 0), ``uniform`` in
   ``reference``. Of the kept tokens by ascending id the first is chosen at which the running sum exceeds u times the
   whole. Seed and position alone decide: nothing depends on the row's index, the batch or an earlier draw.
9. The id is written to last_token[slot].

Tolerances: logprobs within LOGPROB_ERROR. Ids are equal to the reference's, except for a draw whose u lies within
DRAW_ERROR of a boundary between two tokens, where f32 rounding of the masses may decide.

``reference``   the op in plain PyTorch, Philox in plain Python
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers

LOGPROB_ERROR = 1e-5
DRAW_ERROR = 1e-5
BIASES = 32
MAX_LOGPROBS = 20

INTEGERS = ("lengths", "prompts", "top_k", "mask_index", "sample_position", "logprob_count")
NUMBERS = ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")
NAMES = (
    "logits", "slots", "lengths", "prompts", "temperature", "top_k", "top_p", "min_p", "presence", "frequency",
    "repetition", "bias_ids", "bias_values", "mask_index", "masks", "seed", "sample_position", "logprob_count",
    "history", "last_token",
)  # fmt: skip
SAMPLE = Kernel(
    "sample", "sample_f32",
    ParamBlock(
        *((name, "ptr") for name in (*NAMES, "real")), ("ids", "ptr"), ("logprobs", "ptr"), ("logprob_ids", "ptr"),
        ("work", "ptr"), ("mass", "ptr"), ("list", "ptr"), ("logits_stride", "u64"), ("rows", "u32"),
        ("vocabulary", "u32"), ("padded", "u32"), ("slot_count", "u32"), ("context", "u32"), ("mask_count", "u32"),
    ),
)  # fmt: skip
KERNELS = (SAMPLE,)


@lowers("heliograph.sample.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("sample", (*NAMES, "real"), args, keywords)
    logits = call.view("logits", "f32", 2)
    rows, vocabulary = logits.shape
    call.require(vocabulary > 0, "an empty vocabulary", "at least one token")
    history, masks = call.contiguous("history", "i32", 2), call.contiguous("masks", "i32", 2)
    words = -(-vocabulary // 32)
    call.require(masks.shape[1] == words, f"masks of {masks.shape[1]} words", f"{words} words for {vocabulary} tokens")
    biases = {
        "bias_ids": call.contiguous("bias_ids", "i32", 2),
        "bias_values": call.contiguous("bias_values", "f32", 2),
    }
    for name, view in biases.items():
        call.require(view.shape == (rows, BIASES), f"{name} {list(view.shape)}", f"[{rows}, {BIASES}]")
    padded = -(-vocabulary // 16) * 16
    ids, logprobs, logprob_ids = outs
    recorder.launch(
        SAMPLE, rows, logits=logits, slots=call.vector("slots", "i32", rows),
        **{name: call.vector(name, "i32", rows) for name in INTEGERS},
        **{name: call.vector(name, "f32", rows) for name in NUMBERS}, **biases, masks=masks,
        seed=call.vector("seed", "i64", rows), history=history,
        last_token=call.vector("last_token", "i32", history.shape[0]), real=call.real(), ids=ids, logprobs=logprobs,
        logprob_ids=logprob_ids, work=recorder.scratch((rows, padded), "f32"),
        mass=recorder.scratch((rows, padded), "f32"), list=recorder.scratch((rows, padded), "i32"),
        logits_stride=call.rows("logits", logits).stride, rows=rows, vocabulary=vocabulary, padded=padded,
        slot_count=history.shape[0], context=history.shape[1], mask_count=masks.shape[0],
    )  # fmt: skip
