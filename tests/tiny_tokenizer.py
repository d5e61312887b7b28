"""Tokenizers in which every byte is a token: but for merges, a character of several bytes is split at every byte."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tokens(merges: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Controls, the byte alphabet, what the merges make."""
    return [*CONTROLS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]


def byte_level(merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens(merges))}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROLS])
    return tokenizer


def sentence_piece() -> Tokenizer:
    """As Llama 2's: words with a mark for the space, bytes as <0x00>."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "H", "i", "▁H", "▁Hi", "!"]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(pieces)}, [("▁", "H"), ("▁H", "i")],
            unk_token="<unk>", fuse_unk=True, byte_fallback=True,
        )
    )  # fmt: skip
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer
