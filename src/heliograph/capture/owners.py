"""Owners that lead back to the graph they are handed in with.

A graph holds its owners until its replays are over, so an owner that holds the graph would keep both for ever: no
finaliser breaks that cycle. The search asks the garbage collector what each object refers to; a C type that does not
tell it (no ``tp_traverse``) hides what it holds.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import cast

from heliograph.errors import OwnerCycleError

# Objects looked at for one owner. A large model with its Python modules is about a tenth of it.
LIMIT = 1_000_000


def refuse_cycles(graph: object, owners: Iterable[object], *, name: str, limit: int = LIMIT) -> None:
    """OwnerCycleError for the first owner that leads to the graph, with the path from one to the other.

    Not searched: modules that are in ``sys.modules`` and, but for those made in functions, classes. What those hold
    lives on without the owner.
    """
    for owner in owners:
        path = _path(owner, graph, name, limit)
        if path is not None:
            raise OwnerCycleError(
                f"binding owners to graph {name!r}",
                found=f"an owner that leads back to the graph: {_title(owner)}{''.join(path)}",
                required="owners that do not hold the graph",
                hint="keep the graph beside the owner instead of in it, or hold it there by a weak reference",
            )


def _path(owner: object, graph: object, name: str, limit: int) -> list[str] | None:
    """The steps from owner to graph, breadth first, so the shortest; None if there are none."""
    if owner is graph:
        return [" (the graph itself)"]
    parents: dict[int, object] = {id(owner): None}
    alive = [owner]  # keeps ids valid while they stand for objects
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    skipped = {id(each) for module in modules for each in (module, vars(module))}
    waiting = deque([owner])
    while waiting:
        holder = waiting.popleft()
        for held in () if id(holder) in skipped else _held(holder):
            if held is graph:
                return _steps(holder, held, parents)
            if id(held) in parents or not gc.is_tracked(held):
                continue
            if len(alive) >= limit:
                raise OwnerCycleError(
                    f"binding owners to graph {name!r}",
                    found=f"an owner from which more than {limit} objects can be reached: {_title(owner)}",
                    required="an owner small enough to be searched",
                    hint="hand in the object that holds the memory, not what holds everything",
                )
            parents[id(held)] = holder
            alive.append(held)
            waiting.append(held)
    return None


def _held(holder: object) -> Iterable[object]:
    if issubclass(type(holder), type):  # not isinstance: a weak proxy would answer for what it stands for
        return gc.get_referents(holder) if "<locals>" in cast(type, holder).__qualname__ else ()
    return gc.get_referents(holder)


def _steps(holder: object, graph: object, parents: dict[int, object]) -> list[str]:
    """The path in words, from the owner on."""
    chain = [graph, holder]
    while (above := parents[id(chain[-1])]) is not None:
        chain.append(above)
    chain.reverse()
    steps: list[str] = []
    at = 0
    while at < len(chain) - 1:
        beyond = chain[at + 2] if at + 2 < len(chain) else None
        step = _through(chain[at], chain[at + 1], beyond)
        at += 1 if step is None else 2  # a step through a __dict__, globals or a closure names what lies in it
        steps.append(_step(chain[at - 1], chain[at]) if step is None else step)
    return steps


def _through(outer: object, inner: object, beyond: object) -> str | None:
    """The step from ``outer`` to ``beyond`` if ``inner`` is how ``outer`` keeps attributes, globals or a closure."""
    if isinstance(outer, types.FunctionType) and inner is outer.__closure__:
        cells = zip(outer.__code__.co_freevars, outer.__closure__ or (), strict=True)
        variable = next(name for name, cell in cells if cell is beyond)
        return f" → closure of {outer.__qualname__}, variable {variable!r}"
    if isinstance(outer, types.FunctionType) and inner is outer.__globals__:
        variable = next(name for name, value in outer.__globals__.items() if value is beyond)
        return f" → globals of {outer.__qualname__}, variable {variable!r}"
    if isinstance(inner, dict) and (isinstance(outer, type) or inner is getattr(outer, "__dict__", None)):
        return "".join(f".{key}" for key, value in inner.items() if value is beyond)
    return None


def _step(outer: object, inner: object) -> str:
    if isinstance(outer, types.MethodType):
        return f" → bound method {outer.__qualname__}"
    if isinstance(outer, types.CellType):
        return ""  # the variable was named with the closure
    if isinstance(outer, types.FunctionType):
        return f" → default argument of {outer.__qualname__}"
    if isinstance(outer, dict):
        return "".join(f"[{key!r:.60}]" for key, value in outer.items() if value is inner) or " → a key"
    if isinstance(outer, list | tuple | deque):
        return "".join(f"[{index}]" for index, item in enumerate(outer) if item is inner)
    if isinstance(outer, set | frozenset):
        return "{…}"
    names = (name for name, value in _attributes(outer) if value is inner)
    kind = f"class {inner.__qualname__}" if isinstance(inner, type) else type(inner).__qualname__
    return next((f".{name}" for name in names), f" → {kind}")


def _attributes(holder: object) -> Iterator[tuple[str, object]]:
    """What lies in slots, and in an object whose ``__dict__`` was never asked for."""
    for kind in type(holder).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType):
                with suppress(AttributeError):  # a slot that was never filled
                    yield name, member.__get__(holder)
    yield from getattr(holder, "__dict__", {}).items()


def _title(owner: object) -> str:
    name = getattr(owner, "name", None) or getattr(owner, "__qualname__", None)
    return f"{type(owner).__qualname__} {name!r}" if isinstance(name, str) else type(owner).__qualname__
