"""A tokenizer made from GGUF metadata against a second one written here: llama.cpp's rules and merges by rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from heliograph.errors import ModelError
from heliograph.models.gguf_file import open_gguf
from heliograph.models.gguf_metadata import Metadata
from heliograph.models.gguf_tokenizer import read_tokenizer
from heliograph.models.model_text import ModelText
from heliograph.runtime.text import Text
from tiny_models import random_model, write_gguf
from tiny_tokenizer import CONTROLS

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
# As llama.cpp's llama-vocab.cpp states them; each expression splits the pieces that the one before left.
RULES = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}
TEXTS = [
    "", " ", "a", "Hello, world!", "The year 2024 had 366 days; pi is 3.14159.", "  leading and trailing  ",
    "tabs\tand\r\nline\n\n\nbreaks \n ", "It's they're WE'LL I'd don'T", "def f(x):\n    return x[0] != None  # ok\n",
    "Grüße aus Köln, naïve café", "Привет, мир", "你好，世界。今天是2024年", "日本語のテキスト", "한국어 텍스트",
    "مرحبا بالعالم", "👩‍👩‍👧‍👦 🙂🏳️‍🌈 é", "½ ² Ⅷ ٣ १२३", "a  b   c    d", "https://example.org/?q=1&r=%20#x",
    "x" * 300, "the order of the world", "\u00a0\u2003wide\u3000spaces\u200b", "{\"k\": [1, 2.5e-10, null]}",
]  # fmt: skip


def byte_alphabet() -> dict[int, str]:
    """GPT-2's bytes_to_unicode, as published."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table, extra = {byte: chr(byte) for byte in kept}, 0
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


class PlainBpe:
    """Words by expressions, then the merge of lowest rank, first from the left, until none applies."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], rules: Sequence[str], whole_words: bool) -> None:
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.rules = [regex.compile(rule) for rule in rules]
        self.alphabet = byte_alphabet()
        self.whole_words = whole_words

    def words(self, text: str) -> list[str]:
        pieces = [text]
        for rule in self.rules:
            split = []
            for piece in pieces:
                at = 0
                for match in rule.finditer(piece):
                    split += [piece[at : match.start()], match.group()]
                    at = match.end()
                split.append(piece[at:])
            pieces = [piece for piece in split if piece]
        return pieces

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in self.words(text):
            parts = [self.alphabet[byte] for byte in word.encode()]
            if self.whole_words and "".join(parts) in self.ids:
                parts = ["".join(parts)]
            while len(parts) > 1:
                ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(parts)]
                best = min(ranks)
                if best == len(self.ranks):
                    break
                at = ranks.index(best)
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            ids += [self.ids[part] for part in parts]
        return ids


@pytest.fixture(scope="module")
def published(smollm2: Path) -> tuple[Metadata, ModelText]:
    gguf = open_gguf(smollm2)
    gguf.file.close()
    return Metadata(gguf), read_tokenizer(Metadata(gguf))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:20]))
def test_smollm2_tokens_are_those_of_the_rules(published: tuple[Metadata, ModelText], text: str) -> None:
    metadata, made = published
    tokens, merges = metadata.texts("tokenizer.ggml.tokens"), metadata.texts("tokenizer.ggml.merges")
    oracle = PlainBpe(tokens, merges, RULES["smollm"], False)
    assert Tokenizer.from_buffer(made.tokenizer).encode(text).ids == oracle.encode(text)


def test_smollm2_tokens_of_text_without_digits_are_those_of_transformers(
    smollm2: Path, published: tuple[Metadata, ModelText]
) -> None:
    """transformers reads no pre-tokenizer from GGUF, so digits are left out."""
    other = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    ours = Tokenizer.from_buffer(published[1].tokenizer)
    texts = [text for text in TEXTS if not regex.search(r"\p{N}", text)]
    assert len(texts) > 10
    for text in texts:
        assert ours.encode(text).ids == other.encode(text, add_special_tokens=False)


def test_smollm2_controls_are_found_in_text_and_left_out_of_decoded_text(
    published: tuple[Metadata, ModelText],
) -> None:
    made = published[1]
    tokenizer = Tokenizer.from_buffer(made.tokenizer)
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
    assert tokenizer.decode([1, 9690, 2]) == "system"
    assert (made.bos, made.eos, made.bos_text, made.eos_text) == (1, (0, 2), "<|im_start|>", "<|im_end|>")


def test_smollm2_template_puts_its_system_prompt_first(published: tuple[Metadata, ModelText]) -> None:
    made = published[1]
    face = Text(made, made.tokenizer, made.chat_template)
    ids = face.encode_chat([{"role": "user", "content": "Hi"}])
    face.close()
    assert face.decode(ids, controls=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [token for token in ids if token < 17] == [1, 2, 1, 2, 1]


Making = Callable[..., ModelText]


@pytest.fixture(scope="module")
def model() -> object:
    return random_model("llama")


@pytest.fixture
def making(tmp_path: Path, model: object) -> Making:
    def make(**values: object) -> ModelText:
        path = tmp_path / "m.gguf"
        write_gguf(path, model, values={f"tokenizer.ggml.{key}": value for key, value in values.items()})
        gguf = open_gguf(path)
        gguf.file.close()
        return read_tokenizer(Metadata(gguf))

    return make


@pytest.mark.parametrize("pre", RULES)
def test_words_are_split_by_the_rule_that_the_file_names(making: Making, pre: str) -> None:
    made = Tokenizer.from_buffer(making(pre=pre, add_bos_token=False).tokenizer)
    vocabulary = made.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = [" ".join(merge) for merge in json.loads(made.to_str())["model"]["merges"]]
    oracle = PlainBpe(tokens, merges, RULES[pre], pre == "llama-bpe")
    for text in TEXTS:
        normal = text if pre != "qwen2" else made.normalizer.normalize_str(text)
        assert made.encode(text).ids == oracle.encode(normal)
        words = [word for word, _ in made.pre_tokenizer.pre_tokenize_str(normal)]
        assert words == ["".join(oracle.alphabet[byte] for byte in word.encode()) for word in oracle.words(normal)]


@pytest.mark.parametrize(
    ("values", "around"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, ([1], [])),
        ({"add_eos_token": True}, ([], [2])),
        ({"pre": "llama-bpe"}, ([1], [])),
        ({"pre": "llama-bpe", "add_bos_token": False}, ([], [])),
    ],
)
def test_begin_and_end_tokens_are_put_around_text_as_the_file_says(
    making: Making, values: dict[str, object], around: tuple[list[int], list[int]]
) -> None:
    made = Tokenizer.from_buffer(making(**values).tokenizer)
    bare = made.encode("the world", add_special_tokens=False).ids
    assert made.encode("the world").ids == [*around[0], *bare, *around[1]]


END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>",
    "<|end_of_text|>",
)  # fmt: skip


@pytest.mark.parametrize("name", END_TEXTS)
def test_control_token_at_which_llama_cpp_ends_is_an_end(making: Making, name: str) -> None:
    plain = json.loads(making().tokenizer)["model"]["vocab"]
    rest = sorted(plain, key=plain.__getitem__)[3:]

    def ends(kind: int, **keys: int) -> tuple[int, ...]:
        made = making(tokens=["a control", name, "</s>", *rest], token_type=[3, kind, 3, *[1] * len(rest)], **keys)
        assert made.eos_text == "</s>"
        return made.eos

    assert ends(3) == (1, 2)
    assert ends(1) == (2,)  # a plain token of that text
    assert ends(1, eot_token_id=0) == (0, 2)
    assert ends(1, eom_token_id=0) == (0, 2)


def test_user_defined_tokens_are_whole_and_stay_in_the_text(making: Making) -> None:
    names = ["<think>", *CONTROLS[1:]]
    plain = json.loads(making().tokenizer)["model"]["vocab"]
    made = making(
        tokens=[*names, *sorted(plain, key=plain.__getitem__)[3:]], token_type=[4, 3, 3, *[1] * (len(plain) - 3)]
    )
    tokenizer = Tokenizer.from_buffer(made.tokenizer)
    assert tokenizer.encode("a<think>b").ids[1] == 0
    assert tokenizer.decode([0]) == "<think>"


def test_end_of_turn_token_counts_as_an_end(making: Making) -> None:
    assert making(eot_token_id=0).eos == (0, 2)


@pytest.mark.parametrize(
    "values",
    [
        {"token_type": [1, 2]}, {"token_type": [6] * 264}, {"token_type": [0] * 264}, {"merges": ["a"]},
        {"merges": ["a b c"]}, {"merges": ["zz b"]}, {"merges": ["a b"]}, {"tokens": ["a"] * 264},
    ],
    ids=["few types", "byte tokens", "type 0", "one part", "three parts", "unknown part", "unknown whole", "twice"],
)  # fmt: skip
def test_vocabulary_that_makes_no_sense_is_refused(making: Making, values: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        making(**values)


def test_same_metadata_give_the_same_bytes(making: Making) -> None:
    assert making().tokenizer == making().tokenizer
