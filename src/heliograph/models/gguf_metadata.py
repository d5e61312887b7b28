"""Typed access to a GGUF file's metadata. Type and length of a value are checked before it is used."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph.errors import ModelFileError, UnsupportedModelError
from heliograph.models.gguf_file import GgufFile, Kind, Value


class Metadata:
    """Getters by type. A value of another type than llama.cpp writes is refused, not converted. Keys that were
    asked for are remembered, so that settings nobody reads can be refused by name."""

    def __init__(self, gguf: GgufFile) -> None:
        self._file = gguf.file
        self._values = gguf.metadata
        self._read: set[str] = set()

    def holds(self, key: str) -> bool:
        return key in self._values

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._get(key, (Kind.UINT32,), default)
        if not isinstance(value, int):
            raise TypeError(key)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, (Kind.FLOAT32,), default)
        if not isinstance(value, float):
            raise TypeError(key)
        return value

    def truth(self, key: str, default: bool) -> bool:
        return bool(self._get(key, (Kind.BOOL,), default))

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._get(key, (Kind.STRING,), default))

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(str(item) for item in self._items(key, (Kind.STRING,)))

    def wholes(self, key: str) -> tuple[int, ...]:
        return tuple(item for item in self._items(key, (Kind.INT32, Kind.UINT32)) if isinstance(item, int))

    def refuse_unread(self, prefix: str, ignored: Iterable[str] = ()) -> None:
        """Refuses settings under ``prefix`` that nothing asked for: a feature that is not built."""
        left = sorted(key for key in self._values if key.startswith(prefix) and key not in self._read)
        for key in left:
            if key not in ignored:
                raise UnsupportedModelError(
                    f"reading {self._file.path.name}", found=f"the setting {key} = {self._values[key].value!r:.60}",
                    required="a model without it", hint="this variant of the architecture is not built",
                )  # fmt: skip

    def unsupported(self, found: str, required: str, hint: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"reading {self._file.path.name}", found=found, required=required, hint=hint)

    def malformed(self, found: str, required: str) -> ModelFileError:
        return self._file.malformed(found, required)

    def _get(self, key: str, kinds: tuple[Kind, ...], default: object) -> object:
        found = self._find(key, default is None)
        if found is None:
            return default
        if found.kind not in kinds:
            raise self._wrong_type(key, found.kind, kinds)
        return found.value

    def _items(self, key: str, kinds: tuple[Kind, ...]) -> tuple[object, ...]:
        found = self._find(key, True)
        if found is None or found.kind is not Kind.ARRAY or not isinstance(found.value, tuple):
            raise self._wrong_type(key, found.kind if found else None, (Kind.ARRAY,))
        if found.item not in kinds:
            raise self._wrong_type(f"items of {key}", found.item, kinds)
        return found.value

    def _find(self, key: str, needed: bool) -> Value | None:
        self._read.add(key)
        found = self._values.get(key)
        if found is None and needed:
            raise self.malformed(f"no metadata {key!r}", "this value")
        return found

    def _wrong_type(self, key: str, found: Kind | None, kinds: tuple[Kind, ...]) -> ModelFileError:
        names = " or ".join(kind.name for kind in kinds)
        return self.malformed(f"metadata {key!r} of type {found.name if found is not None else None}", f"type {names}")
