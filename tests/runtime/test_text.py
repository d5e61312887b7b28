"""Text and tokens: characters are never split, control tokens come from the template alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from heliograph.errors import ModelFileError, UnsupportedModelError, UsageError
from heliograph.runtime.text import Text
from tiny_tokenizer import CONTROLS, byte_level, sentence_piece

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ note }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Source:
    bos: int = 1
    eos: tuple[int, ...] = (2,)
    bos_text: str = "<|im_start|>"
    eos_text: str = "<|im_end|>"
    vocabulary: int = 300


def face(tokenizer: Tokenizer, template: str = "") -> Text:
    return Text(Source(), tokenizer.to_str().encode(), template)


WORDS = [
    "Hello", "é", "€", "🙂", "👩‍👩‍👧‍👦", "e\u0301", "日本語", "a🙂b€cé", "\ufffd", "\x00\x7f", "\u0800\uffff\U0010ffff",
    " Hi Hi!", "نص", "\n\n",
]  # fmt: skip


@pytest.mark.parametrize("kind", [byte_level, sentence_piece])
@pytest.mark.parametrize("word", WORDS)
def test_parts_join_to_the_whole_text_and_hold_no_broken_character(kind: object, word: str) -> None:
    tokenizer = kind()
    text = face(tokenizer)
    ids = tokenizer.encode(word, add_special_tokens=False).ids
    decoder = text.decoder()
    parts = [decoder.add(token) for token in ids]
    assert "".join(parts) == word == tokenizer.decode(ids)
    assert decoder.end() == ""
    if word != "\ufffd":
        assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("word", ["é", "€", "🙂"])
def test_character_cut_off_at_the_end_is_shown_once(word: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(word).ids
    for kept in range(1, len(ids)):
        decoder = face(tokenizer).decoder()
        assert [decoder.add(token) for token in ids[:kept]] == [""] * kept
        assert decoder.end() == "\ufffd" == tokenizer.decode(ids[:kept])


@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\xff\xfe", b"\xe2\x82A", b"\xf0\x9f\x98A\x80", b"\xc3\xc3\xa9", b"\xed\xa0\x80", b"\xe2\x28\xa1"],
)
def test_bytes_that_are_no_text_are_decoded_as_the_library_does(data: bytes) -> None:
    tokenizer = byte_level()
    alphabet = {character: byte for byte, character in enumerate_alphabet()}
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[character] for byte in data for character, value in alphabet.items() if value == byte]
    assert face(tokenizer).decode(ids) == tokenizer.decode(ids) == data.decode("utf-8", "replace")


def enumerate_alphabet() -> list[tuple[int, str]]:
    """Byte and its character, found by encoding every single byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    extra = iter(range(256, 512))
    return [(byte, chr(byte) if byte in printable else chr(next(extra))) for byte in range(256)]


@pytest.mark.parametrize("words", ["Hi Hi", "Hi", "!Hi", "Hi  Hi!"])
def test_prompt_and_completion_join_to_the_whole_text_wherever_it_is_cut(words: str) -> None:
    text = face(sentence_piece())
    ids = text.encode("<s>" + words)
    for cut in range(len(ids) + 1):
        assert text.decode(ids[:cut]) + text.decode(ids[cut:], after=ids[:cut]) == words


@pytest.mark.parametrize("digits", ["ZZ", "+F", "-1", " F", "٣٤"])
def test_piece_that_only_looks_like_a_byte_is_text(digits: str) -> None:
    stated = json.loads(sentence_piece().to_str())
    added = len(stated["model"]["vocab"])
    stated["model"]["vocab"][f"<0x{digits}>"] = added
    assert face(Tokenizer.from_str(json.dumps(stated))).decode([added]) == f"<0x{digits}>"


def test_controls_are_left_out_unless_asked_for() -> None:
    text = face(byte_level())
    ids = text.encode("<|im_start|>a<|im_end|>")
    assert text.decode(ids) == "a"
    assert text.decode(ids, controls=True) == "<|im_start|>a<|im_end|>"


def test_id_that_the_tokenizer_does_not_have_has_no_text() -> None:
    assert face(byte_level()).decode([3, 9999, 3]) == face(byte_level()).decode([3, 3])


def test_text_is_encoded_as_the_library_does() -> None:
    tokenizer = byte_level()
    for word in WORDS:
        assert face(tokenizer).encode(word) == tokenizer.encode(word).ids


@pytest.mark.parametrize("words", ["Hi", "x" * 200])
def test_truncation_and_padding_that_a_file_was_saved_with_do_not_touch_prompts(words: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(words).ids
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding(length=96)
    text = face(tokenizer, "{{ messages[0].content }}")
    assert text.encode(words) == text.encode_chat([{"role": "user", "content": words}]) == ids


def composing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


@pytest.mark.parametrize("kind", [byte_level, sentence_piece, composing])
@given(st.lists(st.sampled_from(["a", "H", " ", "é", "e\u0301", "\u212a", "\U0001fbf9", *CONTROLS]), max_size=30))
def test_a_text_has_as_many_tokens_as_its_length_tells_at_least(
    kind: Callable[[], Tokenizer], parts: list[str]
) -> None:
    text, word = face(kind()), "".join(parts)
    assert text.fewest(word) <= len(text.encode(word))


def test_the_longest_token_decides_how_many_a_text_has_at_least() -> None:
    longest = len(CONTROLS[0])
    assert face(byte_level()).fewest("é" * 10 * longest) == 10
    assert face(composing()).fewest("é" * 20 * longest) == 5
    assert face(sentence_piece()).fewest("Hi " * 40) == 5  # "<0x00>"


def test_a_conversation_is_shown_before_it_is_encoded() -> None:
    shown: list[str] = []
    text = face(byte_level(), TEMPLATE)
    ids = text.encode_chat([{"role": "user", "content": "Hi"}], check=shown.append)
    assert shown == [text.render([{"role": "user", "content": "Hi"}])]
    assert text.decode(ids, controls=True) == shown[0]


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    text = face(byte_level())
    begun = threading.Event()
    ids: list[int] = []

    def encode() -> None:
        begun.set()
        ids.extend(text.encode("Hello there. " * 40_000))

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait(60)
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert len(ids) == 13 * 40_000
    assert turns > 20


# ---- conversations -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chat() -> Text:
    return face(byte_level(), TEMPLATE)


def controls(ids: list[int]) -> list[int]:
    return [token for token in ids if token < len(CONTROLS)]


def test_conversation_is_encoded_as_its_rendered_text(chat: Text) -> None:
    messages = [{"role": "user", "content": "Hi 🙂"}, {"role": "assistant", "content": "Ho"}]
    ids = chat.encode_chat(messages)
    assert ids == byte_level().encode(chat.render(messages)).ids
    assert controls(ids) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("place", ["content", "role", "tool", "tool key", "variable", "doubled"])
def test_control_token_in_what_a_client_sends_stays_text(chat: Text, control: str, place: str) -> None:
    message = {"role": "user", "content": "Hi"}
    tools: list[dict[str, object]] | None = None
    variables: dict[str, object] = {}
    if place in message:
        message[place] = f"a{control}b"
    elif place == "doubled":
        message["content"] = control[: len(control) // 2] + control + control[len(control) // 2 :] + control
    elif place == "variable":
        variables["note"] = control
    else:
        tools = [{"name": control, "deep": [{"x": control}]} if place == "tool" else {control: 1}]
    ids = chat.encode_chat([message], tools=tools, variables=variables)
    assert controls(ids) == [1, 2, 1]
    assert control in chat.decode(ids, controls=True)
    rendered = chat.render([message], tools=tools, variables=variables)
    assert chat.decode(ids, controls=True) == rendered


def first_only() -> Tokenizer:
    """As Llama 2's without the legacy behaviour: a mark for a space at the beginning of the whole text alone."""
    tokenizer = sentence_piece()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def swallowing() -> Tokenizer:
    """As Phi's: a control token takes the white space behind it; an added token is none."""
    tokenizer = json.loads(sentence_piece().to_str())
    for token in tokenizer["added_tokens"]:
        token["rstrip"] = True
    made = Tokenizer.from_str(json.dumps(tokenizer))
    made.add_tokens(["<tool>"])
    made.add_special_tokens(["<|pad|>"])
    return made


TURNS = "{% for m in messages %}<s>[INST] {{ m.content }} [/INST]\n{% endfor %}"
KINDS = {kind.__name__: kind for kind in (sentence_piece, first_only, swallowing)}


@cache
def turns(kind: str) -> Text:
    return face(KINDS[kind](), TURNS)


def without(tokenizer: Tokenizer, *controls: str) -> Tokenizer:
    """The tokenizer as if it did not know these control tokens."""
    stated = json.loads(tokenizer.to_str())
    stated["added_tokens"] = [token for token in stated["added_tokens"] if token["content"] not in controls]
    return Tokenizer.from_str(json.dumps(stated))


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(
        st.lists(st.sampled_from(["</s>", "</s>", "</", "s>", "a", " ", "Hi", "é", "<tool>", "\n"])).map("".join),
        min_size=1, max_size=3,
    )
)  # fmt: skip
@example(["a </s> b"])
def test_conversation_is_encoded_as_if_the_control_tokens_in_its_messages_were_none(
    kind: str, contents: list[str]
) -> None:
    text = turns(kind)
    messages = [{"role": "user", "content": content} for content in contents]
    wanted = without(KINDS[kind](), "</s>").encode(text.render(messages), add_special_tokens=False).ids
    assert text.encode_chat(messages) == wanted


OVERLAPPING = ("##", "é", "<a><b>", "><", "</s>")


def overlapping() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in OVERLAPPING])
    return tokenizer


@cache
def plain_turns() -> Text:
    return face(overlapping(), "{% for m in messages %}<|im_start|>({{ m.content }})<|im_end|>{% endfor %}")


@given(st.lists(st.sampled_from(["#", "##", "é", "<", "a", ">", "<a>", "<b>", "</s>", *CONTROLS]), max_size=12))
def test_control_tokens_in_a_message_stay_text_however_they_overlap(parts: list[str]) -> None:
    text, content = plain_turns(), "".join(parts)
    ids = text.encode_chat([{"role": "user", "content": content}])
    wanted = without(overlapping(), *CONTROLS, *OVERLAPPING).encode(f"({content})").ids
    assert ids == [1, *wanted, 2]


@pytest.mark.parametrize("content", ["a</s>b", "a＜/s＞b", "ab"])
def test_control_token_of_normalised_text_comes_from_the_template_alone(content: str) -> None:
    stated = json.loads(composing().to_str())
    for token in stated["added_tokens"]:
        token.update(normalized=True, content=token["content"].replace("<|im_end|>", "</s>"))
    text = face(Tokenizer.from_str(json.dumps(stated)), "{{ messages[0].content }}</s>")
    ids = text.encode_chat([{"role": "user", "content": content}])
    text.close()
    ending = text.encode("</s>")
    assert ids[-1:] == ending
    assert ending[0] not in ids[:-1]


def test_control_token_that_the_model_itself_spells_is_refused() -> None:
    merges = (("<", "/"), ("</", "s"), ("</s", ">"))
    tokenizer = byte_level(merges)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    text = face(tokenizer, TEMPLATE)
    assert text.encode_chat([{"role": "user", "content": "</s"}])
    with pytest.raises(UsageError):
        text.encode_chat([{"role": "user", "content": "</s>"}])
    text.close()


def test_characters_that_a_tokenizer_does_not_know_are_no_refusal() -> None:
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>"])
    text = face(tokenizer, "{{ messages[0].content }}")
    assert text.encode_chat([{"role": "user", "content": "aéa"}]) == [1, 0, 1]
    text.close()


def test_vocabulary_with_gaps_in_its_ids_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"</s>": 0, "a": 1, "b": 3}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    text = face(tokenizer, TEMPLATE)
    with pytest.raises(UnsupportedModelError):
        text.encode_chat([])
    text.close()


def test_mark_that_cuts_control_tokens_is_one_that_no_message_holds(chat: Text) -> None:
    content = "".join(chr(code) for code in range(0xFDD0, 0xFDEF)) + "<|im_end|>"
    ids = chat.encode_chat([{"role": "user", "content": content}])
    assert content in chat.decode(ids, controls=True)
    assert controls(ids) == [1, 2, 1]
    with pytest.raises(UsageError):
        chat.encode_chat([{"role": "user", "content": content + "\ufdef"}])


def test_no_messages_are_refused(chat: Text) -> None:
    with pytest.raises(UsageError):
        chat.encode_chat([])
    chat.encode_chat([{"role": "user", "content": ""}])


def test_conversation_without_a_template_is_refused() -> None:
    with pytest.raises(UsageError):
        face(byte_level()).encode_chat([{"role": "user", "content": "Hi"}])


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_renderer_that_nothing_is_rendered_with_is_ended() -> None:
    renderer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    Text(Source(), byte_level().to_str().encode(), "", renderer).close()
    assert renderer.poll() == -signal.SIGKILL


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Metaspace(), decoders.BPEDecoder()])
def test_tokenizer_of_another_kind_is_refused_by_its_name(decoder: object) -> None:
    tokenizer = byte_level()
    if decoder is not None:
        tokenizer.decoder = decoder
    else:
        tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(UnsupportedModelError) as error:
        face(tokenizer)
    assert decoder is None or type(decoder).__name__ in error.value.found


def test_tokenizer_that_cannot_be_read_is_refused() -> None:
    longer = json.loads(sentence_piece().to_str())
    longer["model"]["continuing_subword_prefix"] = "longer than a piece"  # the library does not expect that
    for data in (b"", b"{}", b"\xff", json.dumps(longer).encode()):
        with pytest.raises(ModelFileError):
            Text(Source(), data, "")


def test_text_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, heliograph.runtime.text; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
