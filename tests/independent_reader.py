"""A second reader of cores, written from docs/core-format.md alone: json, hashes and numpy, no code of the package.

``read(path, keys)`` gives what ``heliograph inspect --json`` gives (all but ``fits``), or raises ``Refused`` with the
id of a broken rule. It is slow and simple on purpose: it is what the product's reader is compared with.
One file, so that one look shows that it shares nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

FILES = ["core.json", "core.sig", "graphs.safetensors", "provenance.json"]
GIB = 1 << 30


class Refused(Exception):
    def __init__(self, rule: str, why: str = "") -> None:
        self.rule = rule
        super().__init__(rule, why)


def need(condition: object, rule: str, why: str = "") -> None:
    if not condition:
        raise Refused(rule, why)


# ---- JSON: M1 to M4 ----------------------------------------------------------------------------------------------

# A type is a word, [type], ("?", type), ("pair", type, type), or the name of a table of SCHEMA.
SCHEMA: dict[str, dict[str, Any]] = {
    "envelope": {"payload": "text", "payloadType": "text", "signatures": ["signature"]},
    "signature": {"keyid": "text", "sig": "text"},
    "statement": {"_type": "text", "subject": ["subject"], "predicateType": "text", "predicate": "predicate"},
    "subject": {"name": "text", "digest": "digests"},
    "digests": {"sha256": "digest"},
    "predicate": {"name": "text", "sequence": "count", "signed_at": "text"},
    "core": {
        "format": "count", "features": ["text"], "model": "text", "target": "target",
        "limits": [("pair", "text", "count")], "numerics": "text",
        "slot": "count", "regions": ["region"], "buffers": ["buffer"], "modules": ["module"],
        "functions": ["function"], "graphs": ["graph"], "entries": ["entry"], "graphs_file": "blob",
        "weights": "weights", "choices": ["choice"], "self_tests": ["self_test"], "text": ("?", "text_model"),
        "blobs": ["blob"],
    },
    "target": {"device": "text", "arch": "text", "abi": "count", "ranks": "count", "processors": "count",
               "shared_optin": "count", "driver": "count"},
    "region": {"role": "text", "base": "address", "span": "count", "size": "count", "grow": "count",
               "grow_at": "count", "initial": ["slice"]},
    "slice": {"offset": "count", "size": "count", "blob": "digest"},
    "buffer": {"name": "name", "role": "text", "offset": "count", "size": "count", "dtype": "text",
               "shape": "shape", "grows": "boolean"},
    "module": {"blob": "digest", "family": "name", "origin": "text", "size": "count",
               "globals": ["global"]},
    "global": {"name": "name", "size": "count", "blob": "digest"},
    "function": {"name": "name", "module": "count", "param_bytes": "count", "pointers": ["count"],
                 "constants": [("pair", "text", "text")]},
    "graph": {"name": "name", "flags": "count", "nodes": "count", "edges": "count"},
    "entry": {"name": "name", "buckets": ["bucket"]},
    "bucket": {"shape": [("pair", "text", "count")], "segments": ["segment"], "inputs": ["field"],
               "outputs": ["field"]},
    "segment": {"kind": "text", "graph": "count"},
    "field": {"name": "name", "buffer": "count"},
    "weights": {"cap": "count", "size": "count", "slices": ["slice"], "tensors": ["tensor"]},
    "tensor": {"name": "name", "offset": "count", "size": "count", "dtype": "text", "shape": "shape",
               "layout": "text", "source": "digest", "stored": "digest"},
    "choice": {"op": "name", "shape": "text", "variant": "name"},
    "self_test": {"graph": "count", "cases": ["case"]},
    "case": {"inputs": "digest", "outputs": "digest", "state": "digest", "units": "count"},
    "text_model": {"tokenizer": "digest", "chat_template": "digest", "bos": "integer", "eos": ["count"],
                   "vocabulary": "count", "context": "count", "block_tokens": "count", "concurrency": "count",
                   "bos_text": "text", "eos_text": "text"},
    "blob": {"digest": "digest", "size": "count"},
    "provenance": {
        "format": "count", "created": "text", "command": ["text"], "commit": "text", "uncommitted": "text",
        "environment": ["item"], "compiler": ["item"], "versions": ["item"], "libraries": ["item"],
        "sources": ["item"], "device": ["item"], "source_files": ["item"], "tuning_cache": "text", "seed": "count",
        "retain": "text", "costs": ["item"], "phases": ["phase"], "tuning_log": ["text"], "findings": ["text"],
    },
    "item": {"name": "text", "value": "text"},
    "phase": {"name": "text", "nanoseconds": "count"},
    "column": {"data_offsets": ("pair", "count", "count"), "dtype": "text", "shape": ["count"]},
}  # fmt: skip


def canonical(data: bytes, limit: int = 64 << 20) -> Any:
    need(len(data) <= limit, "M1")
    need(depth(data) <= 32, "M2")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len({name for name, _ in pairs}) == len(pairs), "M3", "a key twice")
        return dict(pairs)

    def fraction(text: str) -> Any:
        raise Refused("M3", text)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_float=fraction, parse_constant=fraction)
        again = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")
    except ValueError as error:  # bad JSON, bad UTF-8, a lone surrogate, an integer without end
        raise Refused("M3", str(error)) from error
    need(again == data, "M3", "another form")
    return value


def depth(data: bytes) -> int:
    level = deepest = 0
    outside = re.sub(rb'"(?:[^"\\]++|\\.)*+"', b"", data, flags=re.DOTALL)
    for bracket in re.findall(rb"[\[\]{}]", outside):
        level += 1 if bracket in b"[{" else -1
        deepest = max(deepest, level)
    return deepest


def typed(value: Any, kind: Any) -> None:
    if isinstance(kind, list):
        need(isinstance(value, list), "M4")
        for item in value:
            typed(item, kind[0])
    elif isinstance(kind, tuple) and kind[0] == "?":
        if value is not None:
            typed(value, kind[1])
    elif isinstance(kind, tuple):
        need(isinstance(value, list) and len(value) == len(kind) - 1, "M4")
        for item, own in zip(value, kind[1:], strict=True):
            typed(item, own)
    elif kind in SCHEMA:
        need(isinstance(value, dict) and value.keys() == SCHEMA[kind].keys(), "M4", f"fields of {kind}")
        for name, own in SCHEMA[kind].items():
            typed(value[name], own)
    else:
        need(WORDS[kind](value), "M4", f"{value!r} as {kind}")


def is_integer(value: Any, low: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 1 << 53


def is_name(value: Any) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= 4096:
        return False
    printable = all(33 <= ord(letter) <= 126 and letter != "\\" for letter in value)
    return printable and not {"", ".", ".."} & set(value.split("/"))


def is_hex(value: Any, low: int, high: int) -> bool:
    return isinstance(value, str) and low <= len(value) <= high and set(value) <= set("0123456789abcdef")


WORDS = {
    "count": is_integer,
    "integer": lambda value: is_integer(value, -1),
    "text": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "digest": lambda value: is_hex(value, 64, 64),
    "address": lambda value: isinstance(value, str) and value[:2] == "0x" and is_hex(value[2:], 1, 16)
    and value[2] != "0",
    "name": is_name,
    "shape": lambda value: isinstance(value, list) and len(value) <= 16 and all(map(is_integer, value)),
}  # fmt: skip


def document(data: bytes, kind: str, limit: int = 64 << 20) -> Any:
    value = canonical(data, limit)
    typed(value, kind)
    return value


# ---- the folder: M10 to M13 --------------------------------------------------------------------------------------


def regular(path: Path) -> os.stat_result:
    found = os.lstat(path)
    need(stat.S_ISREG(found.st_mode), "M11", str(path))
    return found


def check_folder(path: Path) -> None:
    need(path.is_dir(), "M10")
    need(sorted(os.listdir(path)) == sorted([*FILES, "blobs"]), "M10")
    for name in FILES:
        regular(path / name)
    need(stat.S_ISDIR(os.lstat(path / "blobs").st_mode), "M11")


def load(path: Path, limit: int) -> bytes:
    need(regular(path).st_size <= limit, "M1")
    return path.read_bytes()


# ---- the signature: M20 to M26 -----------------------------------------------------------------------------------

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def recover_x(y: int, sign: int) -> int | None:
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    return P - x if x % 2 != sign else x


Point = tuple[int, int, int, int]  # x/z, y/z, z, xy/z


def add(a: Point, b: Point) -> Point:
    low, high = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    c, d = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = high - low, d - c, d + c, high + low
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(scalar: int, point: Point) -> Point:
    total = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point = add(point, point)
        scalar >>= 1
    return total


def same(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def decompress(data: bytes) -> Point | None:
    value = int.from_bytes(data, "little")
    y = value & ((1 << 255) - 1)
    x = recover_x(y, value >> 255) if y < P else None
    return None if x is None else (x, y, 1, x * y % P)


BASE = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


@functools.cache  # most altered cores keep their signature
def ed25519(key: bytes, message: bytes, signature: bytes) -> bool:
    """RFC 8032, 5.1.7."""
    if len(signature) != 64:
        return False
    a, r = decompress(key), decompress(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if a is None or r is None or BASE is None or s >= ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    return same(times(s, BASE), add(r, times(h, a)))


def key_id(key: bytes) -> str:
    """SHA-256 of the DER SubjectPublicKeyInfo, whose first 12 bytes are the same for every Ed25519 key."""
    return hashlib.sha256(bytes.fromhex("302a300506032b6570032100") + key).hexdigest()


def from_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Refused("M20") from error
    need(base64.b64encode(data).decode() == text, "M20")
    return data


def check_signature(path: Path, keys: list[bytes]) -> tuple[dict[str, Any], list[str]]:
    try:
        envelope = document(load(path / "core.sig", 1 << 20), "envelope", 1 << 20)
    except Refused as error:
        raise Refused(error.rule if error.rule in {"M1", "M2"} else "M20") from error
    kind = envelope["payloadType"]
    need(kind != "application/vnd.heliograph.draft+json", "M26")
    need(kind == "application/vnd.in-toto+json", "M21")
    payload = from_base64(envelope["payload"])
    message = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    signatures = [from_base64(signature["sig"]) for signature in envelope["signatures"]]
    signers = sorted(key_id(key) for key in keys if any(ed25519(key, message, data) for data in signatures))
    need(signers, "M22")
    statement = canonical(payload)
    need(isinstance(statement, dict) and isinstance(statement.get("subject"), list), "M4")
    for subject in statement["subject"]:
        need(isinstance(subject, dict) and isinstance(subject.get("digest"), dict), "M4")
        need(subject["digest"].keys() == {"sha256"}, "M24")
    typed(statement, "statement")
    need(statement["_type"] == "https://in-toto.io/Statement/v1", "M23")
    need(statement["predicateType"] == "urn:x-heliograph:core:v0", "M23")
    need([subject["name"] for subject in statement["subject"]] == ["core.json", "provenance.json"], "M24")
    predicate = statement["predicate"]
    need(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}", predicate["name"]), "M25")
    need(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", predicate["signed_at"]), "M25")
    return statement, signers


# ---- core.json: M5, M30 to M53 -----------------------------------------------------------------------------------

ITEM = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u8": 1,
        "bool": 1}  # fmt: skip

LIMITS = {"heap", "l2_fetch", "l2_persisting", "pending_launches", "printf", "stack", "sync_depth"}


def product(extents: list[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


def unique(values: list[Any]) -> bool:
    return len(set(values)) == len(values)


def check_target(core: dict[str, Any]) -> None:
    need(core["format"] == 0 and core["features"] == [], "M5")
    target = core["target"]
    rest = (target["processors"], target["shared_optin"], target["driver"])
    need(core["model"] and target["arch"] and target["ranks"] >= 1, "M30")
    need(core["numerics"] in {"row-invariant", "fast"} and target["device"] in {"host", "cuda"}, "M30")
    host = target["device"] == "host"
    need(target["abi"] >= 1 and rest == (0, 0, 0) if host else target["abi"] == 0 and min(rest) >= 1, "M30")
    names = [name for name, _ in core["limits"]]
    need(not (host and names) and names == sorted(set(names)) and set(names) <= LIMITS, "M53")


def check_regions(core: dict[str, Any]) -> None:
    need(core["slot"] < 8, "M31")
    start = 0x100100000000 + core["slot"] * 12 * 1024 * GIB
    end = start
    for region in core["regions"]:
        base = int(region["base"], 16)
        need(region["role"] in {"weights", "constants", "persistent", "io", "scratch", "windows", "state"}, "M31")
        need(base % (4 * GIB) == 0 and (base >> 32) % 64 == 1, "M31")
        need(end <= base and base + region["span"] <= start + 4096 * GIB, "M31")
        need(region["span"] > 0 and region["span"] % (2 << 20) == 0, "M31")
        end = base + region["span"]
        need(region["size"] <= region["span"], "M32")
        need(not region["initial"] or region["role"] in {"constants", "persistent", "scratch"}, "M34")
        free = 0
        for part in region["initial"]:
            need(part["size"] and free <= part["offset"] and part["offset"] + part["size"] <= region["size"], "M34")
            free = part["offset"] + part["size"]
    need(unique([region["role"] for region in core["regions"]]), "M31")


def check_buffers(core: dict[str, Any]) -> None:
    regions = {region["role"]: region for region in core["regions"]}
    for buffer in core["buffers"]:
        need(buffer["role"] in regions and buffer["offset"] % 256 == 0, "M35")
        end = buffer["offset"] + buffer["size"]
        need(buffer["grows"] or end <= regions[buffer["role"]]["size"], "M35")
        need(buffer["dtype"] in ITEM, "M37")
        size = product(buffer["shape"]) * ITEM[buffer["dtype"]]
        need(size == buffer["size"] if buffer["role"] == "io" else size <= buffer["size"], "M37")
    need(unique([buffer["name"] for buffer in core["buffers"]]), "M35")
    for role, region in regions.items():
        own = [buffer for buffer in core["buffers"] if buffer["role"] == role]
        growing = [(buffer["offset"], buffer["size"]) for buffer in own if buffer["grows"]]
        if region["grow"]:
            need(role == "state" and growing == [(region["grow_at"], region["grow"])], "M33")
            need(region["size"] <= region["grow_at"] <= region["span"] - region["grow"], "M33")
        else:
            need(not growing and region["grow_at"] == 0, "M33")
        ends = sorted((buffer["offset"], buffer["offset"] + buffer["size"]) for buffer in own)
        for (_, before), (after, _) in itertools.pairwise(ends):
            need(role == "scratch" or after - before >= 256, "M36")


def check_program(core: dict[str, Any]) -> None:
    host = core["target"]["device"] == "host"
    for function in core["functions"]:
        need(function["module"] < len(core["modules"]) and function["param_bytes"] <= 32764, "M38")
        need(host or not function["pointers"], "M38")
        places = [-8, *function["pointers"]]
        for before, pointer in itertools.pairwise(places):
            need(pointer % 8 == 0 and before + 8 <= pointer <= function["param_bytes"] - 8, "M38")
    need(unique([(function["module"], function["name"]) for function in core["functions"]]), "M38")
    need(unique([module["blob"] for module in core["modules"]]), "M38")
    need({function["module"] for function in core["functions"]} == set(range(len(core["modules"]))), "M38")
    for module in core["modules"]:
        names = [variable["name"] for variable in module["globals"]]
        need(names == sorted(set(names)) and all(variable["size"] for variable in module["globals"]), "M52")
        need(not (host and names), "M52")
    need(core["graphs"] and unique([graph["name"] for graph in core["graphs"]]), "M40")
    for graph in core["graphs"]:
        need(graph["flags"] in {0, 1, 8, 9} and graph["nodes"] >= 1, "M40")
    need(unique([entry["name"] for entry in core["entries"]]), "M41")
    for entry in core["entries"]:
        shapes = [dict(bucket["shape"]) for bucket in entry["buckets"]]
        orders = [[name for name, _ in bucket["shape"]] for bucket in entry["buckets"]]
        need(shapes and all(order == orders[0] for order in orders) and unique(orders[0]), "M41")
        extents = [list(shape.values()) for shape in shapes]
        need(extents == sorted(extents) and unique([tuple(extent) for extent in extents]), "M41")
        need(all(extent >= 1 for shape in extents for extent in shape), "M41")
    buckets = [bucket for entry in core["entries"] for bucket in entry["buckets"]]
    segments = [segment for bucket in buckets for segment in bucket["segments"]]
    need(all(bucket["segments"] for bucket in buckets) and {s["kind"] for s in segments} <= {"graph"}, "M41")
    need(sorted(segment["graph"] for segment in segments) == list(range(len(core["graphs"]))), "M41")
    for bucket in buckets:
        fields = bucket["inputs"] + bucket["outputs"]
        for field in fields:
            need(field["buffer"] < len(core["buffers"]), "M42")
            need(core["buffers"][field["buffer"]]["role"] == "io", "M42")
        need(unique([field["buffer"] for field in fields]), "M42")
        need(all(unique([field["name"] for field in bucket[side]]) for side in ("inputs", "outputs")), "M42")


def check_weights(core: dict[str, Any]) -> None:
    weights = core["weights"]
    cap, size = weights["cap"], weights["size"]
    need(cap >= 1 << 20, "M43")
    mapped = [region["size"] for region in core["regions"] if region["role"] == "weights"]
    need(bool(mapped) == (size > 0) and all(have >= size for have in mapped), "M44")
    unit = 2 << 20 if cap >= 2 << 20 else 1 << 20
    step = cap - cap % unit
    at = 0
    for part in weights["slices"]:
        need(part["offset"] == at and 0 < part["size"] == min(step, size - at), "M43")
        at += part["size"]
    need(at == size, "M43")
    places = [(b["offset"], b["offset"] + b["size"]) for b in core["buffers"] if b["role"] == "weights"]
    for tensor in weights["tensors"]:
        elements, end = product(tensor["shape"]), tensor["offset"] + tensor["size"]
        if tensor["layout"] == "plain":
            need(tensor["dtype"] in ITEM and tensor["size"] == elements * ITEM[tensor["dtype"]], "M45")
        else:
            need(tensor["layout"] in {"q8_0", "q4_1"} and tensor["dtype"] == "u8" and tensor["shape"], "M45")
            block = {"q8_0": 34, "q4_1": 20}[tensor["layout"]]
            need(tensor["shape"][-1] % 32 == 0 and tensor["size"] == elements // 32 * block, "M45")
        inside = any(low <= tensor["offset"] and end <= high for low, high in places)
        need(inside and tensor["offset"] % 256 == 0 and end <= size, "M45")
    need(unique([tensor["name"] for tensor in weights["tensors"]]), "M45")
    apart = sorted({(tensor["offset"], tensor["size"], tensor["stored"]) for tensor in weights["tensors"]})
    for (low, length, _), (after, _, _) in itertools.pairwise(apart):
        need(low + length <= after, "M45")


def input_bytes(core: dict[str, Any], graph: int) -> int:
    for entry in core["entries"]:
        for bucket in entry["buckets"]:
            if graph in [segment["graph"] for segment in bucket["segments"]]:
                return sum(core["buffers"][field["buffer"]]["size"] for field in bucket["inputs"])
    raise Refused("M41")


def check_content(core: dict[str, Any]) -> None:
    keys = [(choice["op"], choice["shape"]) for choice in core["choices"]]
    need(keys == sorted(keys) and unique(keys), "M47")
    need([test["graph"] for test in core["self_tests"]] == list(range(len(core["graphs"]))), "M48")
    state = next((region for region in core["regions"] if region["grow"]), None)
    for test in core["self_tests"]:
        inputs = [case["inputs"] for case in test["cases"]]
        need(len(inputs) >= 2 and (len(set(inputs)) >= 2 or input_bytes(core, test["graph"]) == 0), "M48")
        room = 0 if state is None else (state["span"] - state["grow_at"]) // state["grow"]
        for case in test["cases"]:
            need(case["units"] <= room, "M48")
            need("0" * 64 not in case.values(), "M49")
    text = core["text"]
    if text is not None:
        need(min(text[key] for key in ("vocabulary", "context", "block_tokens", "concurrency")) >= 1, "M50")
        need(all(token < text["vocabulary"] for token in [text["bos"], *text["eos"]]), "M50")


def check_core(core: dict[str, Any]) -> None:
    for check in (check_target, check_regions, check_buffers, check_program, check_weights, check_content):
        check(core)


def check_blobs(core: dict[str, Any]) -> set[str]:
    """The blobs that are more than weight slices."""
    sizes = {blob["digest"]: blob["size"] for blob in core["blobs"]}
    need([blob["digest"] for blob in core["blobs"]] == sorted(sizes), "M51")
    need("0" * 64 not in sizes, "M49")
    held = [(module["blob"], module["size"]) for module in core["modules"]]
    held += [(variable["blob"], variable["size"]) for module in core["modules"] for variable in module["globals"]]
    held += [(part["blob"], part["size"]) for region in core["regions"] for part in region["initial"]]
    for test in core["self_tests"]:
        held += [(case["inputs"], input_bytes(core, test["graph"])) for case in test["cases"]]
    if core["text"] is not None:
        held += [(core["text"][key], sizes.get(core["text"][key])) for key in ("tokenizer", "chat_template")]
    slices = [(part["blob"], part["size"]) for part in core["weights"]["slices"]]
    for digest, size in held + slices:
        need(digest in sizes and sizes[digest] == size, "M51")
    need(all(sizes[digest] <= GIB for digest, _ in held), "M51")
    need({digest for digest, _ in held + slices} == set(sizes), "M51")
    return {digest for digest, _ in held}


# ---- graphs.safetensors: M60 to M87 ------------------------------------------------------------------------------

NUMPY = {"U8": "u1", "U32": "<u4", "U64": "<u8", "I64": "<i8"}
COLUMNS: dict[str, tuple[str, int]] = {}  # name: (dtype, elements of a row)
for _dtype, _width, _names in (
    ("U8", 1, "node.kind kernel.form param.bytes string.bytes"),
    ("U8", 8, "edge.data"),
    ("U8", 32, "weights.chunks"),
    ("U8", 64, "attr.value"),
    ("U32", 1, "graph.nodes graph.edges graph.collectives graph.flags node.row node.order node.origin"),
    ("U32", 1, "kernel.function kernel.shared kernel.refs kernel.attrs ref.at ref.buffer attr.id"),
    ("U32", 1, "function.attrs function.attr.id memset.value memset.element memset.buffer"),
    ("U32", 1, "copy.to.buffer copy.from.buffer edge.from edge.to collective.node collective.consumer"),
    ("U32", 3, "kernel.grid kernel.block"),
    ("U64", 1, "kernel.params ref.offset memset.address memset.width memset.height memset.pitch memset.offset"),
    ("U64", 1, "copy.to copy.from copy.bytes copy.to.offset copy.from.offset string.offsets"),
    ("I64", 1, "function.attr.value"),
):
    COLUMNS.update(dict.fromkeys(_names.split(), (_dtype, _width)))

NODE_ATTRIBUTES = {1: 28, 2: 4, 4: 12, 5: 4, 8: 4, 9: 2, 10: 4, 11: 12, 14: 4}  # id: bytes of its members


def columns_of(data: bytes) -> dict[str, np.ndarray]:
    need(8 <= len(data) <= 4 * GIB, "M60")
    length = int.from_bytes(data[:8], "little")
    need(length % 8 == 0 and 8 <= length <= 1 << 20 and 8 + length <= len(data), "M60")
    header = data[8 : 8 + length]
    text = header.rstrip(b" ")
    need(length - len(text) <= 7, "M61")
    try:
        table = canonical(text)
    except Refused as error:
        raise Refused("M61") from error
    need(isinstance(table, dict), "M62")
    for value in table.values():
        try:
            typed(value, "column")
        except Refused as error:
            raise Refused("M62") from error
    need(table.keys() == COLUMNS.keys(), "M62")
    body = np.frombuffer(data, dtype=np.uint8, offset=8 + length)
    at = 0
    columns = {}
    for name in sorted(COLUMNS, key=lambda name: (-np.dtype(NUMPY[COLUMNS[name][0]]).itemsize, name)):
        dtype, width = COLUMNS[name]
        said = table[name]
        need(said["dtype"] == dtype and len(said["shape"]) == 1 + (width > 1), "M63")
        need(width == 1 or said["shape"][1] == width, "M63")
        end = at + said["shape"][0] * width * np.dtype(NUMPY[dtype]).itemsize
        need(said["data_offsets"] == [at, end] and end <= len(body), "M64")
        column = np.frombuffer(body[at:end].tobytes(), dtype=NUMPY[dtype])
        columns[name] = column.reshape(-1, width) if width > 1 else column
        at = end
    need(at == len(body), "M64")
    return columns


class Catalogue:
    """Checks the columns against core.json, one table after the other."""

    def __init__(self, core: dict[str, Any], columns: dict[str, np.ndarray]) -> None:
        self.core, self.c = core, columns
        self.host = core["target"]["device"] == "host"
        bases = {region["role"]: int(region["base"], 16) for region in core["regions"]}
        buffers = core["buffers"]
        self.addresses = np.array([bases[b["role"]] + b["offset"] for b in buffers], dtype=np.uint64)
        self.sizes = np.array([b["size"] for b in buffers], dtype=np.uint64)
        self.writable = np.array([b["role"] not in {"weights", "constants"} for b in buffers], dtype=bool)

    def check(self) -> None:
        self.check_tables()
        self.check_nodes()
        self.check_launches()
        self.check_references()
        self.check_attributes()
        self.check_memsets()
        self.check_copies()
        self.check_edges()
        chunks = -(-self.core["weights"]["size"] // (4 << 20))
        need(len(self.c["weights.chunks"]) == chunks, "M46")
        self.check_cuda()

    def rows(self, names: str, count: int, rule: str = "M70") -> None:
        for name in names.split():
            need(len(self.c[name]) == count, rule, name)

    def offsets(self, name: str, count: int, total: int) -> None:
        column = self.c[name].astype(object)
        need(len(column) == count + 1 and column[0] == 0 and column[-1] == total, "M70", name)
        need(all(low <= high for low, high in itertools.pairwise(column)), "M70", name)

    def check_tables(self) -> None:
        c, graphs = self.c, self.core["graphs"]
        self.nodes, self.edges = len(c["node.kind"]), len(c["edge.to"])
        self.offsets("graph.nodes", len(graphs), self.nodes)
        self.offsets("graph.edges", len(graphs), self.edges)
        self.rows("graph.flags", len(graphs))
        self.first = c["graph.nodes"].astype(int)
        need(np.diff(self.first).tolist() == [graph["nodes"] for graph in graphs], "M70")
        need(np.diff(c["graph.edges"].astype(int)).tolist() == [graph["edges"] for graph in graphs], "M70")
        need(c["graph.flags"].tolist() == [graph["flags"] for graph in graphs], "M70")
        need(len(c["string.offsets"]) >= 1, "M70")
        self.strings = len(c["string.offsets"]) - 1
        self.offsets("string.offsets", self.strings, len(c["string.bytes"]))
        text, at = c["string.bytes"].tobytes(), c["string.offsets"].tolist()
        for low, high in itertools.pairwise(at):
            try:
                text[low:high].decode("utf-8")
            except UnicodeDecodeError as error:
                raise Refused("M73") from error

    def check_nodes(self) -> None:
        c = self.c
        self.rows("node.row node.order node.origin", self.nodes)
        kind = c["node.kind"]
        need(np.isin(kind, [0, 1, 2, 5]).all(), "M71")
        need((c["node.row"][kind == 5] == 0).all(), "M71")
        tables = {0: "kernel.function", 1: "copy.to", 2: "memset.address"}
        for number, table in tables.items():
            count = int((kind == number).sum())
            need(c["node.row"][kind == number].tolist() == list(range(count)), "M71")
            self.rows(table, count, "M71")
        for low, high in zip(self.first, self.first[1:], strict=False):
            need(c["node.order"][low:high].tolist() == list(range(high - low)), "M72")
        need((c["node.origin"] < self.strings).all(), "M73")

    def check_launches(self) -> None:
        c = self.c
        self.kernels = len(c["kernel.function"])
        self.rows("kernel.grid kernel.block kernel.shared kernel.form", self.kernels)
        self.offsets("kernel.params", self.kernels, len(c["param.bytes"]))
        functions = self.core["functions"]
        need(set(c["kernel.function"].tolist()) == set(range(len(functions))), "M74")
        need((c["kernel.grid"] >= 1).all() and (c["kernel.block"] >= 1).all(), "M74")
        if self.host:
            need((c["kernel.grid"][:, 1:] == 1).all() and (c["kernel.block"] == 1).all(), "M74")
            need((c["kernel.shared"] == 0).all(), "M74")
        need((c["kernel.form"] <= (0 if self.host else 1)).all(), "M75")
        wanted = [functions[number]["param_bytes"] for number in c["kernel.function"]]
        need(np.diff(c["kernel.params"].astype(int)).tolist() == wanted, "M75")

    def check_references(self) -> None:
        c = self.c
        count = len(c["ref.at"])
        self.rows("ref.buffer ref.offset", count)
        self.offsets("kernel.refs", self.kernels, count)
        need((c["ref.buffer"] < len(self.sizes)).all(), "M76")
        need((c["ref.offset"] <= self.sizes[c["ref.buffer"]]).all(), "M76")
        params, refs = c["kernel.params"].astype(int), c["kernel.refs"].astype(int)
        raw = c["param.bytes"].tobytes()
        for kernel in range(self.kernels):
            own = raw[params[kernel] : params[kernel + 1]]
            places = []
            for ref in range(refs[kernel], refs[kernel + 1]):
                at = int(c["ref.at"][ref])
                need((places[-1] + 8 if places else 0) <= at <= len(own) - 8, "M76")
                target = int(self.addresses[c["ref.buffer"][ref]]) + int(c["ref.offset"][ref])
                need(int.from_bytes(own[at : at + 8], "little") == target, "M77")
                places.append(at)
            if self.host:
                pointers = self.core["functions"][c["kernel.function"][kernel]]["pointers"]
                need(places == [at for at in pointers if own[at : at + 8] != bytes(8)], "M78")

    def check_attributes(self) -> None:
        c = self.c
        self.rows("attr.value", len(c["attr.id"]))
        self.rows("function.attr.value", len(c["function.attr.id"]))
        tables = (("kernel.attrs", self.kernels, "attr.id"),
                  ("function.attrs", len(self.core["functions"]), "function.attr.id"))  # fmt: skip
        for name, count, ids in tables:
            self.offsets(name, count, len(c[ids]))
            for low, high in zip(c[name], c[name][1:], strict=False):
                need((np.diff(c[ids][low:high].astype(int)) > 0).all(), "M79")
            need(not self.host or len(c[ids]) == 0, "M79")

    def check_cuda(self) -> None:
        """Ids and values that only a CUDA driver knows."""
        c = self.c
        if self.host:
            return
        for number, value in zip(c["attr.id"].tolist(), c["attr.value"], strict=True):
            need(number in NODE_ATTRIBUTES and not value[NODE_ATTRIBUTES[number] :].any(), "M86")
            if number == 1:
                base, size = (int.from_bytes(value[at : at + 8].tobytes(), "little") for at in (0, 8))
                spans = [(int(region["base"], 16), region["span"]) for region in self.core["regions"]]
                need(base == size == 0 or any(b <= base and base + size <= b + s for b, s in spans), "M86")
        for number, value in zip(c["function.attr.id"].tolist(), c["function.attr.value"].tolist(), strict=True):
            need(number in {8, 9, 11, 12, 13, 14, 15}, "M87")
            need((-1 if number == 9 else 0) <= value < 2**31, "M87")
        for number in range(len(self.core["graphs"])):
            for edge in range(*map(int, c["graph.edges"][number : number + 2])):
                port, to_port, kind = c["edge.data"][edge][:3].tolist()
                ends = [int(c["node.kind"][self.first[number] + int(c[end][edge])]) for end in ("edge.from", "edge.to")]
                need(to_port == 0 and (port, kind) in {(0, 0), (1, 1), (2, 0), (2, 1)}, "M84")
                need(not port or ends[0] == 0, "M84")
                need(not kind or ends == [0, 0], "M84")

    def place(self, rule: str, buffer: Any, offset: Any, size: int, address: Any, written: bool) -> None:
        need(buffer < len(self.sizes), rule)
        need(int(offset) + size <= int(self.sizes[buffer]), rule)
        need(int(address) == int(self.addresses[buffer]) + int(offset), rule)
        need(not written or self.writable[buffer], "M82")

    def check_memsets(self) -> None:
        c = self.c
        fields = ("address", "value", "element", "width", "height", "pitch", "buffer", "offset")
        self.rows(" ".join(f"memset.{name}" for name in fields), len(c["memset.address"]))
        for row in zip(*(c[f"memset.{name}"].tolist() for name in fields), strict=True):
            address, value, element, width, height, pitch, buffer, offset = row
            need(element in {1, 2, 4} and value < 1 << (8 * element) and width >= 1 and height >= 1, "M80")
            need(not self.host or (element == 1 and height == 1), "M80")
            need(pitch == 0 if height == 1 else pitch >= width * element, "M80")
            self.place("M80", buffer, offset, pitch * (height - 1) + width * element, address, True)

    def check_copies(self) -> None:
        c = self.c
        fields = ("to", "from", "bytes", "to.buffer", "to.offset", "from.buffer", "from.offset")
        self.rows(" ".join(f"copy.{name}" for name in fields), len(c["copy.to"]))
        for row in zip(*(c[f"copy.{name}"].tolist() for name in fields), strict=True):
            to, source, size, to_buffer, to_offset, from_buffer, from_offset = row
            need(size >= 1, "M81")
            self.place("M81", to_buffer, to_offset, size, to, True)
            self.place("M81", from_buffer, from_offset, size, source, False)

    def check_edges(self) -> None:
        c = self.c
        self.rows("edge.from edge.data", self.edges)
        self.rows("collective.consumer", len(c["collective.node"]))
        self.offsets("graph.collectives", len(self.core["graphs"]), len(c["collective.node"]))
        need(not c["edge.data"][:, 0 if self.host else 3 :].any(), "M84")
        for number, graph in enumerate(self.core["graphs"]):
            low, high = c["graph.edges"][number : number + 2]
            pairs = list(zip(c["edge.to"][low:high].tolist(), c["edge.from"][low:high].tolist(), strict=True))
            need(all(source < target < graph["nodes"] for target, source in pairs), "M83")
            need(pairs == sorted(set(pairs)), "M83")
            low, high = c["graph.collectives"][number : number + 2]
            both = list(zip(c["collective.node"][low:high].tolist(), c["collective.consumer"][low:high].tolist(),
                            strict=True))  # fmt: skip
            need(all(node < consumer < graph["nodes"] for node, consumer in both), "M85")
            kind = c["node.kind"][self.first[number] : self.first[number + 1]]
            need(all(kind[node] == 0 and kind[consumer] == 0 for node, consumer in both), "M85")
            need(both == sorted(set(both)), "M85")


# ---- images: M39 -------------------------------------------------------------------------------------------------


def check_image(image: bytes, target: dict[str, Any]) -> None:
    def number(at: int, size: int) -> int:
        need(0 <= at <= len(image) - size, "M39")
        return int.from_bytes(image[at : at + size], "little")

    need(len(image) >= 64 and image[:6] == b"\x7fELF\x02\x01", "M39")
    machine = number(18, 2)
    if target["device"] == "cuda":
        return need(machine == 190, "M39")
    arch = target["arch"]
    need(machine == (62 if arch.startswith("x86-64") else 183) or (machine == 62 and arch == "generic"), "M39")
    first, count = number(32, 8), number(56, 2)
    need(number(16, 2) == 3 and number(54, 2) == 56 and 0 < count <= 64, "M39")
    kinds, end = set(), 0
    for at in range(first, first + 56 * count, 56):
        kind, flags, begin, address, size, memory = (
            number(at + offset, width) for offset, width in ((0, 4), (4, 4), (8, 8), (16, 8), (32, 8), (40, 8))
        )
        kinds.add(kind)
        need(kind not in {3, 7}, "M39")
        need(not (flags & 1 and (flags & 2 or kind == 0x6474E551)), "M39")
        need(kind not in {1, 2} or (begin + size <= len(image) and size <= memory), "M39")
        if kind == 1:
            need(end <= address <= 1 << 32 and memory <= 1 << 32, "M39")
            end = address + memory
        if kind == 2:
            for entry in range(begin, begin + size - 15, 16):
                tag, value = number(entry, 8), number(entry + 8, 8)
                if tag == 0:
                    break
                need(tag not in {1, 12, 13, 22, 25, 26, 32}, "M39")
                need(not ((tag == 30 and value & 4) or (tag == 0x6FFFFFFB and value & 8)), "M39")
            else:
                raise Refused("M39")
    return need({1, 2, 0x6474E551} <= kinds and end > 0, "M39")


# ---- all of it ---------------------------------------------------------------------------------------------------


def check_chunks(path: Path, core: dict[str, Any], chunks: np.ndarray) -> None:
    """Every byte of the weights (M13, M46)."""
    held = b""
    row = 0
    for part in core["weights"]["slices"]:
        data = (path / "blobs" / part["blob"]).read_bytes()
        need(blake3(data).hexdigest() == part["blob"], "M13")
        held += data
        while len(held) >= 4 << 20:
            need(blake3(held[: 4 << 20]).digest() == chunks[row].tobytes(), "M46")
            held, row = held[4 << 20 :], row + 1
    need(not held or blake3(held).digest() == chunks[row].tobytes(), "M46")


def read(path: Path, keys: list[bytes], weights: bool = True) -> dict[str, Any]:
    """``keys``: raw Ed25519 public keys that are trusted. ``weights``: read them as well."""
    path = Path(path)
    check_folder(path)
    statement, signers = check_signature(path, keys)
    signed = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    data = load(path / "core.json", 64 << 20)
    digest = hashlib.sha256(data).hexdigest()
    need(digest == signed["core.json"], "M24")
    core = document(data, "core")
    check_core(core)
    held = check_blobs(core)
    need(sorted(os.listdir(path / "blobs")) == [blob["digest"] for blob in core["blobs"]], "M10")
    for blob in core["blobs"]:
        need(regular(path / "blobs" / blob["digest"]).st_size == blob["size"], "M12")
    data = load(path / "provenance.json", 64 << 20)
    need(hashlib.sha256(data).hexdigest() == signed["provenance.json"], "M24")
    provenance = document(data, "provenance")
    need(provenance["format"] == core["format"], "M90")
    size = core["graphs_file"]["size"]
    need(size <= 4 * GIB, "M60")
    need(regular(path / "graphs.safetensors").st_size == size, "M12")
    data = (path / "graphs.safetensors").read_bytes()
    need(blake3(data).hexdigest() == core["graphs_file"]["digest"], "M13")
    columns = columns_of(data)
    Catalogue(core, columns).check()
    for name in held:
        need(blake3((path / "blobs" / name).read_bytes()).hexdigest() == name, "M13")
    for module in core["modules"]:
        check_image((path / "blobs" / module["blob"]).read_bytes(), core["target"])
    if weights:
        check_chunks(path, core, columns["weights.chunks"])
    return describe(core, columns) | {
        "name": statement["predicate"]["name"],
        "digest": digest,
        "signers": signers,
        "provenance": provenance,
    }


def describe(core: dict[str, Any], columns: dict[str, np.ndarray]) -> dict[str, Any]:
    kinds = {0: "kernel", 1: "memcpy", 2: "memset", 5: "empty"}
    first = columns["graph.nodes"].astype(int)
    launched = Counter(columns["kernel.function"].tolist())
    graphs = []
    for number, graph in enumerate(core["graphs"]):
        own = slice(first[number], first[number + 1])
        kernels = columns["node.row"][own][columns["node.kind"][own] == 0]
        count = Counter(kinds[kind] for kind in columns["node.kind"][own].tolist())
        used = len(set(columns["kernel.function"][kernels].tolist()))
        graphs.append(graph | {"kinds": dict(sorted(count.items())), "functions": used})
    entries = [
        {
            "name": entry["name"],
            "buckets": [
                {
                    "shape": dict(bucket["shape"]),
                    "graphs": [segment["graph"] for segment in bucket["segments"]],
                    "inputs": [field["name"] for field in bucket["inputs"]],
                    "outputs": [field["name"] for field in bucket["outputs"]],
                }
                for bucket in entry["buckets"]
            ],
        }
        for entry in core["entries"]
    ]
    tensors = core["weights"]["tensors"]
    same = ("format", "features", "model", "target", "numerics", "slot", "text")
    return {name: core[name] for name in same} | {
        "graphs": graphs,
        "entries": entries,
        "functions": [
            {key: function[key] for key in ("name", "module", "param_bytes")} | {"nodes": launched[number]}
            for number, function in enumerate(core["functions"])
        ],
        "libraries": dict(sorted(Counter(core["modules"][f["module"]]["origin"] for f in core["functions"]).items())),
        "modules": [
            {"digest": m["blob"], "globals": len(m["globals"])} | {key: m[key] for key in ("family", "origin", "size")}
            for m in core["modules"]
        ],
        "regions": [{key: r[key] for key in ("role", "base", "span", "size", "grow")} for r in core["regions"]],
        "buffers": dict(Counter(buffer["role"] for buffer in core["buffers"])),
        "weights": {
            "size": core["weights"]["size"],
            "cap": core["weights"]["cap"],
            "files": len(core["weights"]["slices"]),
            "tensors": len(tensors),
            "layouts": dict(Counter(f"{tensor['dtype']} {tensor['layout']}" for tensor in tensors)),
        },
        "bytes": {"graphs": core["graphs_file"]["size"], "blobs": sum(blob["size"] for blob in core["blobs"])},
        "self_tests": len(core["self_tests"]),
    }
