"""A ``tokenizer.json`` from the vocabulary and merges in a GGUF file's metadata.

GGUF names the pre-tokenizer (``tokenizer.ggml.pre``) and leaves its rule to the reader; the rules are those of
llama.cpp's ``llama-vocab.cpp`` and of the tokenizers that the models were published with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from heliograph.models.gguf_metadata import Metadata
from heliograph.models.model_text import ModelText, check_text

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
PREFIX = "tokenizer.ggml."

Rule = Mapping[str, object]


def _byte_level(use_regex: bool) -> Rule:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> Rule:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_DIGITS: Rule = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
}
_LLAMA3, _QWEN2 = _split(_WORDS % "{1,3}"), _split(_WORDS % "")
PRE_TOKENIZERS: Mapping[str, Rule] = {
    "gpt-2": _byte_level(use_regex=True),
    "smollm": _DIGITS,
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}  # fmt: skip
WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3")  # a word in the vocabulary is taken before any merge
NORMALISED = ("qwen2",)  # to NFC
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens at which llama.cpp always ends, by their text (special_eog_ids in llama-vocab.cpp).
END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>",
    "<|end_of_text|>",
)  # fmt: skip
STARTS_WITH_BOS = ("llama-bpe", "llama3", "llama-v3")  # unless the file says otherwise


def read_tokenizer(metadata: Metadata) -> ModelText:
    """The tokenizer, chat template and special tokens of a GGUF file, checked."""
    tokens = metadata.texts(PREFIX + "tokens")
    bos = metadata.whole(PREFIX + "bos_token_id", -1)
    kinds = _kinds(metadata, tokens)
    ends = [metadata.whole(PREFIX + key) for key in END_KEYS if metadata.holds(PREFIX + key)]
    for token in (bos, *ends):
        if not -1 <= token < len(tokens):
            raise metadata.malformed(f"special token {token}", f"an id below {len(tokens)}")
    spelled = {token for token, kind in enumerate(kinds) if kind == CONTROL and tokens[token] in END_TEXTS}
    return check_text(
        ModelText(
            tokenizer=_tokenizer(metadata, tokens, kinds, bos, ends[0] if ends else -1),
            chat_template=metadata.text("tokenizer.chat_template", ""),
            bos=bos,
            eos=tuple(sorted(spelled.union(ends))),
            bos_text=tokens[bos] if bos >= 0 else "",
            eos_text=tokens[ends[0]] if ends else "",
            vocabulary=len(tokens),
        )
    )


def _tokenizer(metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int], bos: int, eos: int) -> bytes:
    kind, pre = metadata.text(PREFIX + "model"), metadata.text(PREFIX + "pre", "")
    if kind != "gpt2":
        raise metadata.unsupported(
            f"tokenizer {kind!r}", "gpt2 (byte-level BPE)", "take the model's Hugging Face folder instead"
        )
    if pre not in PRE_TOKENIZERS:
        raise metadata.unsupported(
            f"pre-tokenizer {pre!r}", f"one of {', '.join(PRE_TOKENIZERS)}",
            "take the model's Hugging Face folder instead, or convert it again with a current llama.cpp",
        )  # fmt: skip
    if metadata.truth(PREFIX + "add_space_prefix", False):
        raise metadata.unsupported("add_space_prefix", "a byte-level tokenizer without it", "this is not built")
    around = [
        *([bos] if metadata.truth(PREFIX + "add_bos_token", pre in STARTS_WITH_BOS) else []),
        None,
        *([eos] if metadata.truth(PREFIX + "add_eos_token", False) else []),
    ]
    if -1 in around:
        raise metadata.malformed("a begin or end token to add, and no id for it", "its id")
    written = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, kinds),
        "normalizer": {"type": "NFC"} if pre in NORMALISED else None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": _around(tokens, around) if len(around) > 1 else None,
        "decoder": _byte_level(use_regex=True),
        "model": _bpe(metadata, tokens, pre in WHOLE_WORDS_FIRST),
    }
    return json.dumps(written, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _kinds(metadata: Metadata, tokens: Sequence[str]) -> Sequence[int]:
    """What each token is: normal, control …"""
    kinds = metadata.wholes(PREFIX + "token_type")
    if len(kinds) != len(tokens):
        raise metadata.malformed(f"{len(kinds)} token types", f"{len(tokens)}, one a token")
    for token, kind in enumerate(kinds):
        if not NORMAL <= kind <= UNUSED:
            raise metadata.unsupported(f"token {token} of type {kind}", f"{NORMAL} to {UNUSED}", "this is not built")
    return kinds


def _added_tokens(tokens: Sequence[str], kinds: Sequence[int]) -> list[Rule]:
    """Control and user-defined tokens, which are found in text before it is split into words."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": token, "content": tokens[token], **flags, "special": kind != USER_DEFINED}
        for token, kind in enumerate(kinds)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _bpe(metadata: Metadata, tokens: Sequence[str], ignore_merges: bool) -> Rule:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise metadata.malformed("a token twice in the vocabulary", "each token once")
    merges = list(metadata.texts(PREFIX + "merges"))  # "a b"; written as pairs they take a reader a quarter longer
    for merge in merges:
        parts = merge.split(" ")
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocabulary.keys():
            raise metadata.malformed(f"merge {parts}", "two tokens of the vocabulary that make a third")
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
        "vocab": dict(sorted(vocabulary.items())),  # in this order the library reads it in an eighth less time
        "merges": merges,
    }  # fmt: skip


def _around(tokens: Sequence[str], order: Sequence[int | None]) -> Rule:
    """A post-processor that puts special tokens around a text (None)."""

    def place(token: int | None, sequence: str) -> Rule:
        if token is None:
            return {"Sequence": {"id": sequence, "type_id": 0}}
        return {"SpecialToken": {"id": tokens[token], "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [place(token, "A") for token in order],
        "pair": [place(token, sequence) for sequence in "AB" for token in order],
        "special_tokens": {
            tokens[token]: {"id": tokens[token], "ids": [token], "tokens": [tokens[token]]}
            for token in order
            if token is not None
        },
    }  # fmt: skip
