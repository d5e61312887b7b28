"""KV blocks: who owns which, by counting references. Block 0 is padding and belongs to nobody."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph.errors import UsageError


class Blocks:
    """Hands out each block to one owner, who may share it; free again when the last owner gives it back."""

    def __init__(self, units: int) -> None:
        """``units``: blocks that are mapped, the padding block included."""
        self._owners = [0] * units
        self._free = list(range(units - 1, 0, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Blocks that nobody owns. UsageError if there are not so many."""
        if not 0 <= count <= len(self._free):
            raise _fault("taking blocks", f"{count} wanted, {len(self._free)} free", "as many as are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner of each."""
        for block in blocks:
            self._owned(block)
            self._owners[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """One owner less of each. UsageError for a block that nobody owns."""
        for block in blocks:
            self._owned(block)
            self._owners[block] -= 1
            if not self._owners[block]:
                self._free.append(block)

    def owners(self, block: int) -> int:
        return self._owners[block]

    def _owned(self, block: int) -> None:
        if not (0 < block < len(self._owners) and self._owners[block]):
            raise _fault("counting owners of blocks", f"block {block}, which nobody owns", "a block that was taken")


def _fault(doing: str, found: str, required: str) -> UsageError:
    return UsageError(
        doing, found=found, required=required, hint="this is a fault in Heliograph: please report it"
    )  # fmt: skip
