"""How commands end: exit codes by error type, errors for people and for scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph import errors
from heliograph.cli.group import COMMANDS, EXIT_CODES, exit_code


def heliograph(*arguments: str | Path, check: int = 0) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "heliograph"), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == check, run.stderr
    return run


def every_error() -> list[type[errors.HeliographError]]:
    found, waiting = [], [errors.HeliographError]
    while waiting:
        waiting += (children := waiting.pop().__subclasses__())
        found += children
    return found


def test_every_error_has_an_exit_code_of_its_branch() -> None:
    for kind in every_error():
        assert exit_code(kind("a", found="b", required="c", hint="d")) in {code for _, code in EXIT_CODES}


def test_exit_codes_differ() -> None:
    codes = [code for _, code in EXIT_CODES]
    assert len(set(codes)) == len(codes)
    assert not {0, 1, 130} & set(codes)


def test_a_missing_core_is_an_error_of_four_parts_for_people(tmp_path: Path) -> None:
    run = heliograph("verify", tmp_path / "nothing", check=5)
    assert "found:" in run.stderr
    assert "required:" in run.stderr
    assert "hint" in run.stderr


def test_a_missing_core_is_one_json_object_for_scripts(tmp_path: Path) -> None:
    run = heliograph("verify", tmp_path / "nothing", "--json", check=5)
    error = json.loads(run.stderr)
    assert issubclass(getattr(errors, error["error"]), errors.CoreError)
    assert all(error[field] for field in ("doing", "found", "required", "hint"))
    assert run.stdout == ""


def test_an_unknown_option_is_a_usage_error() -> None:
    heliograph("verify", "--no-such-option", check=2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "nan"), ("--temperature", "inf"), ("--temperature", "2.5"), ("--top-p", "nan"),
        ("--min-p", "nan"), ("--seed", str(1 << 63)), ("--seed", str(-(1 << 63) - 1)),
    ],
)  # fmt: skip
def test_settings_that_the_server_refuses_are_refused_on_the_command_line(
    tmp_path: Path, option: str, value: str
) -> None:
    assert option in heliograph("generate", tmp_path / "nothing", "Hi", option, value, check=2).stderr
    heliograph("generate", tmp_path / "nothing", "Hi", option, "1", check=5)


@pytest.mark.parametrize("command", ["generate", "replay", "serve"])
def test_threads_have_one_name(command: str) -> None:
    assert "--threads" in heliograph(command, "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert "Usage:" in heliograph(command, "--help").stdout


def loaded_by(*names: str) -> set[str]:
    """The modules that a fresh process has once these of Heliograph are imported."""
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    names = tuple(f"heliograph.{name}" for name in names)
    run = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_commands_other_than_capture_do_not_import_torch() -> None:
    assert "torch" not in loaded_by(*(f"cli.{command}" for command in COMMANDS if command != "capture"))


@pytest.mark.parametrize("command", ["main", "generate", "serve", "chat"])
def test_what_answers_a_person_loads_no_numpy_and_draws_tables_only_for_a_terminal(command: str) -> None:
    modules = loaded_by(f"cli.{command}")
    assert f"heliograph.cli.{command}" in modules
    assert not {"numpy", "rich"} & modules


def test_a_worker_starts_before_anything_that_can_wait_is_imported() -> None:
    modules = loaded_by("cli.main", "serve.fork")
    assert "heliograph.serve.fork" in modules
    assert not {"click", "asyncio", "logging", "subprocess", "heliograph.cli.group"} & modules
