"""docs/serving.md says what the server does: its tables are those of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import cast

import msgspec
from starlette.routing import Route

from heliograph.cli.output import bytes_text
from heliograph.serve.front import openai_request
from heliograph.serve.front.app import Paths
from heliograph.serve.front.exposition import expose
from heliograph.serve.front.metrics import Metrics
from heliograph.serve.front.others import make_others
from heliograph.serve.front.rounds import Rounds
from heliograph.serve.front.service import Service
from heliograph.serve.limits import LIMITS, Limits

DOC = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first heading this is, as cells."""
    block = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[-| ]+\|\n((?:\|.*\n)*)", DOC, re.MULTILINE)
    assert block, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in block[1].splitlines()]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def shown(value: float, comment: str) -> str:
    if isinstance(value, float):
        return f"{value:g} s"
    return bytes_text(value).replace(".0 ", " ") if comment.startswith("bytes") else str(value)


def limits() -> list[list[str]]:
    """The table as the code has it: a name, its value, what it belongs to, and the comment beside it."""
    rows, part = [], ""
    for line in inspect.getsource(Limits).splitlines():
        if heading := re.fullmatch(r"    # ---- (.+)", line):
            part = heading[1]
        elif entry := re.fullmatch(r"    (\w+): (?:int|float) = [^#]+?(?:  # (.+))?", line):
            of = entry[2] or ""
            rows.append([f"`{entry[1]}`", shown(getattr(LIMITS, entry[1]), of), part, of])
    return rows


def test_the_limits_are_those_of_the_code_in_its_order_and_words() -> None:
    assert [names(row[0])[0] for row in limits()] == list(Limits.__struct_fields__)
    assert table("limit") == limits()


def test_every_field_that_is_taken_is_in_the_table_and_no_other() -> None:
    def fields(body: type[openai_request.Body]) -> set[str]:
        return {field.name for field in msgspec.structs.fields(body)}

    rows = table("field")
    for column, body in ((1, openai_request.ChatBody), (2, openai_request.CompletionBody)):
        assert {names(row[0])[0] for row in rows if row[column] == "yes"} == fields(body)


def test_every_field_that_is_refused_or_without_effect_is_named() -> None:
    assert {name for row in table("refused") for name in names(row[0])} == openai_request.REFUSED.keys()
    takes = {name: row[1] for row in table("refused") for name in names(row[0])}
    for name, values in openai_request.REFUSED.items():
        assert bool(takes[name]) == bool(values), name
    paragraph = DOC.partition("**Taken without effect**")[2].partition("\n\n")[0]
    assert set(names(paragraph)) == openai_request.HARMLESS


def test_every_metric_is_named_and_no_other() -> None:
    text = expose(Metrics(), Rounds()).decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    exported = {name for name, kind in kinds.items() if not (kind == "gauge" and name.endswith("_created"))}
    assert set(re.findall(r"`(heliograph_\w+)`", DOC)) == exported


def test_every_endpoint_is_in_the_table_and_no_other() -> None:
    nobody = cast(Service, None)  # kept by the endpoints, and not asked
    first = [f"{method} {path}" for method, path in Paths(nobody)._first]
    others = [
        f"{method} {route.path.replace(':path', '')}"
        for route in make_others(nobody).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    ]
    assert sorted(names(row[0])[0] for row in table("endpoint")) == sorted(first + others)
