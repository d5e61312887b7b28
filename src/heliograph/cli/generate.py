"""``heliograph generate``: a prompt answered by a core, in this process, without torch."""

from __future__ import annotations

import time
from pathlib import Path

import click

from heliograph.cli.number import SEED, Number
from heliograph.cli.output import device_option, json_option, print_json, threads_option
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.generate import generate
from heliograph.runtime.load import load
from heliograph.runtime.maps import torch_loaded
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.text import Text


@click.command("generate")
@click.argument("core", type=click.Path(path_type=Path))
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="Most tokens to generate.")
@click.option("--temperature", type=Number(0, 2), default=0.0, show_default=True, help="0 takes the likeliest token.")
@click.option(
    "--top-k", type=click.IntRange(0, (1 << 31) - 1), default=0, help="Keep the k likeliest tokens; 0 keeps all."
)
@click.option("--top-p", type=Number(0, 1), default=1.0, help="Keep the likeliest tokens up to this mass.")
@click.option(
    "--min-p",
    type=Number(0, 1),
    default=0.0,
    help="Keep tokens at least this likely, relative to the likeliest.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Same seed, same answer.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the chat template.")
@threads_option
@device_option
@click.option("--stats", is_flag=True, help="Print times and whether torch is in this process.")
@json_option
def command(
    core: Path, prompt: str, max_tokens: int, temperature: float, top_k: int, top_p: float, min_p: float,
    seed: int, raw: bool, threads: int, device: int, stats: bool, as_json: bool,
) -> None:  # fmt: skip
    """Answer PROMPT with CORE and print the answer as it comes."""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    start = time.perf_counter_ns()
    with verify(core, Policy.local()) as verified:
        text = Text.of(verified)
        ids = text.encode(prompt) if raw else text.encode_chat([{"role": "user", "content": prompt}])
        before = ids if raw else ()
        # Each bucket is tested before its first run.
        with load(verified, workers=threads, index=device, ready=()) as program:
            loaded = time.perf_counter_ns()
            decoder = text.decoder(after=before)
            tokens: list[int] = []
            first = loaded
            for token in generate(program, ids, max_tokens, sampling):
                if not tokens:
                    first = time.perf_counter_ns()
                tokens.append(token)
                if not as_json:
                    click.echo(decoder.add(token), nl=False)
            if not as_json:
                click.echo(decoder.end())
            phases, weights = dict(program.phases), program.staged.bytes_read
    end = time.perf_counter_ns()
    times = {
        "load_ns": loaded - start,
        "first_token_ns": first - start,
        "total_ns": end - start,
        "tokens_per_second": (len(tokens) - 1) / max(1, end - first) * 1e9,
    }
    torch = torch_loaded()
    if as_json:
        answer = text.decode(tokens, after=before)
        counts = {"prompt_tokens": len(ids), "weights_bytes": weights}
        print_json({"answer": answer, "tokens": tokens, "torch": torch, "phases": phases} | counts | times)
    elif stats:
        load_ms, first_ms = times["load_ns"] / 1e6, times["first_token_ns"] / 1e6
        speed = times["tokens_per_second"]
        click.echo(f"load {load_ms:.0f} ms, first token {first_ms:.0f} ms, {speed:.1f} tokens/s", err=True)
        click.echo(f"{weights} bytes of weights read", err=True)
        click.echo(f"torch: {'LOADED' if torch else 'not loaded'}", err=True)
