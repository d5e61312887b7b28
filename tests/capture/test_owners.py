"""R5: an owner that leads back to the graph is refused, with the path; one that does not is taken."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable

import pytest

from heliograph.capture.owners import refuse_cycles
from heliograph.device.graph import Graph
from heliograph.errors import OwnerCycleError


class Owner:
    """Something that keeps memory; tests hang things on it."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)

    def run(self) -> None: ...


class Bare:
    """An owner whose attributes lie in the object itself, not in a dictionary."""

    def __init__(self, held: object) -> None:
        self.held = held


class Slotted:
    __slots__ = ("empty", "held")

    def __init__(self, held: object) -> None:
        self.held = held


def closure_over(held: object) -> Callable[[], object]:
    return lambda: held


def default_argument(held: object) -> Callable[..., object]:
    def replay(graph: object = held) -> object:
        return graph

    return replay


def function_attribute(held: object) -> Callable[[], None]:
    def replay() -> None: ...

    replay.graph = held  # type: ignore[attr-defined]
    return replay


def class_attribute(graph: object) -> object:
    class Engine:
        held = graph

    return Engine()


def method(graph: object) -> object:
    class Engine:
        def replay(self) -> object:
            return graph

    return Engine()


def derived_property(graph: object) -> object:
    class Engine:
        @property
        def replay(self) -> object:
            return graph

    class Derived(Engine): ...

    return Derived()


def globals_of_their_own(held: object) -> object:
    names: dict[str, object] = {"graph": held}
    exec("def replay(): return graph", names)
    return names["replay"]


def private_module(held: object) -> types.ModuleType:
    module = types.ModuleType("sys")  # a name that another module has
    module.graph = held  # type: ignore[attr-defined]
    return module


LEADS: dict[str, tuple[Callable[[object], object], str]] = {
    "attribute": (lambda g: Owner(graph=g), "Owner.graph"),
    "attribute without a dictionary": (Bare, "Bare.held"),
    "slot": (Slotted, "Slotted.held"),
    "nested attribute": (lambda g: Owner(engine=Bare(g)), "Owner.engine.held"),
    "list": (lambda g: Owner(graphs=[None, g]), "Owner.graphs[1]"),
    "tuple": (lambda g: Owner(graphs=(0, 1, g)), "Owner.graphs[2]"),
    "deque": (lambda g: Owner(graphs=deque([g])), "Owner.graphs[0]"),
    "dictionary": (lambda g: Owner(graphs={"decode/8": g}), "Owner.graphs['decode/8']"),
    "dictionary key": (lambda g: Owner(costs={g: 1}), "Owner.costs → a key"),
    "set": (lambda g: Owner(graphs={g}), "Owner.graphs{…}"),
    "closure": (closure_over, " → closure of closure_over.<locals>.<lambda>, variable 'held'"),
    "closure of an attribute": (lambda g: Owner(hook=closure_over(g)), "variable 'held'"),
    "default argument": (default_argument, "default argument of default_argument.<locals>.replay"),
    "function attribute": (function_attribute, ".graph"),
    "bound method": (lambda g: Owner(graph=g).run, "→ bound method Owner.run.graph"),
    "partial": (lambda g: functools.partial(print, g), "partial"),
    "lease": (lambda g: Owner(lease=Lent(g)), "Owner.lease.graph"),
    "attribute of a class made in a function": (class_attribute, " → class class_attribute.<locals>.Engine.held"),
    "method of a class made in a function": (
        method, "Engine.replay → closure of method.<locals>.Engine.replay, variable 'graph'"
    ),
    "property of its base": (derived_property, "Derived.__base__.replay.fget → closure of derived_property."),
    "globals of a function": (globals_of_their_own, "function 'replay' → globals of replay, variable 'graph'"),
    "module of its own": (private_module, "module.graph"),
    "attribute that is one": (lambda g: Owner(module=private_module(g)), "Owner.module.graph"),
}  # fmt: skip


class Lent:
    def __init__(self, graph: object) -> None:
        self.graph = graph


@pytest.mark.parametrize("way", LEADS)
def test_owner_that_leads_to_the_graph_is_refused_with_the_path(way: str) -> None:
    graph = Graph("decode/8")
    make, path = LEADS[way]
    with pytest.raises(OwnerCycleError) as refused:
        refuse_cycles(graph, [make(graph)], name="decode/8")
    assert path in refused.value.found


@pytest.mark.parametrize("way", LEADS)
def test_owner_that_leads_to_another_graph_is_taken(way: str) -> None:
    make, _ = LEADS[way]
    refuse_cycles(Graph("decode/8"), [make(Graph("other"))], name="decode/8")


def test_the_graph_itself_is_no_owner() -> None:
    graph = Graph()
    with pytest.raises(OwnerCycleError, match="itself"):
        refuse_cycles(graph, [graph], name="graph")


def test_second_owner_is_named() -> None:
    graph = Graph()
    second = Owner(name="workspace", graph=graph)
    with pytest.raises(OwnerCycleError) as refused:
        refuse_cycles(graph, [Owner(), second], name="graph")
    assert "Owner 'workspace'.graph" in refused.value.found
    refuse_cycles(graph, [Owner(), Owner(name="workspace")], name="graph")


def test_shortest_path_is_named() -> None:
    graph = Graph()
    owner = Owner(far=[[[graph]]], near=graph)
    with pytest.raises(OwnerCycleError) as refused:
        refuse_cycles(graph, [owner], name="graph")
    assert refused.value.found.endswith("Owner.near")


def test_weak_reference_is_no_lead() -> None:
    graph = Graph()
    refuse_cycles(graph, [Owner(graph=weakref.ref(graph)), Owner(graph=weakref.proxy(graph))], name="graph")


def test_dead_weak_proxy_is_no_lead() -> None:
    graph, other = Graph(), Graph()
    owner = Owner(other=weakref.proxy(other))
    del other
    refuse_cycles(graph, [owner], name="graph")


def test_modules_that_can_be_imported_and_their_functions_and_classes_are_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = Graph()
    module = types.ModuleType("holds_a_graph")
    module.graph = graph  # type: ignore[attr-defined]
    exec("def run(): return graph", vars(module))
    monkeypatch.setitem(sys.modules, "holds_a_graph", module)
    registered = type("Registered", (), {"graph": graph})
    owners = [module, Owner(module=module), Owner(run=module.run), Owner(kind=registered), registered()]
    refuse_cycles(graph, owners, name="graph")


def test_cycles_among_other_objects_end_the_search() -> None:
    owner = Owner()
    owner.me = owner  # type: ignore[attr-defined]
    refuse_cycles(Graph(), [owner], name="graph")


def test_owner_too_large_to_search_is_refused() -> None:
    refuse_cycles(Graph(), [Owner(parts=[[] for _ in range(90)])], name="graph", limit=100)
    with pytest.raises(OwnerCycleError) as refused:
        refuse_cycles(Graph(), [Owner(parts=[[] for _ in range(110)])], name="graph", limit=100)
    assert "more than 100 objects" in refused.value.found
