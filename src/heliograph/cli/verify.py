"""``heliograph verify``: every byte of a core, weights included, against its signature."""

from __future__ import annotations

import time
from pathlib import Path

import click

from heliograph.cli.output import bytes_text, console, json_option, print_json, progress
from heliograph.core.policy import Policy
from heliograph.core.verify import verify, verify_weights


@click.command("verify")
@click.argument("core", type=click.Path(path_type=Path))
@json_option
def command(core: Path, as_json: bool) -> None:
    """Check every byte of CORE, weights included. A core that is altered, incomplete or untrusted is refused."""
    start = time.perf_counter_ns()
    with verify(core, Policy.local()) as verified, progress(as_json) as tell:
        size = verified.core.weights.size
        verify_weights(verified, lambda done: tell("weights", done, size))
        elapsed = time.perf_counter_ns() - start
        result = {
            "ok": True,
            "name": verified.name,
            "digest": verified.digest,
            "signers": list(verified.signers),
            "weights_bytes": size,
            "nanoseconds": elapsed,
        }
    if as_json:
        print_json(result)
    else:
        out = console()
        out.print(f"{result['name']}: every byte is as signed by {', '.join(verified.signers)}")
        out.print(f"core digest {result['digest']}; {bytes_text(size)} of weights; {elapsed / 1e9:.2f} s")
