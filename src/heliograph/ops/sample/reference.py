"""``heliograph::sample`` in plain PyTorch, one row at a time, with a full sort; Philox in plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heliograph.ops.sample import BIASES, MAX_LOGPROBS

_WORD = 0xFFFFFFFF


def philox4x32_10(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011)."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _WORD, (a >> 32) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The draw of a seed and a position: 53 bits, in [0, 1)."""
    words = philox4x32_10((seed & _WORD, seed >> 32 & _WORD), (position & _WORD, 0, 0, 0))
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Settings:
    """One row's settings; the defaults change nothing, so that temperature 1 is the model's own distribution."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


def adjusted(
    logits: Tensor, settings: Settings, history: Tensor, prompt: int, biases: list[tuple[int, float]],
    mask: Tensor | None,
) -> Tensor:  # fmt: skip
    """Steps 1 and 3 to 5: f32 [V] with penalties, bias and mask applied. ``history`` begins with ``prompt`` tokens that
    were not generated."""
    x = cleaned(logits)
    repetition = settings.repetition if settings.repetition > 0 else 1.0
    x = torch.where(_counts(history, len(x)) > 0, torch.where(x > 0, x / repetition, x * repetition), x)
    generated = _counts(history[max(prompt, 0) :], len(x))
    x = torch.where(generated > 0, x - settings.frequency * generated - settings.presence, x)
    for token, value in biases:
        if 0 <= token < len(x):
            x[token] += value
    return x if mask is None else torch.where(mask, x, -torch.inf)


def _counts(history: Tensor, vocabulary: int) -> Tensor:
    known = history[(history >= 0) & (history < vocabulary)].long()
    return torch.bincount(known, minlength=vocabulary).to(torch.float32)


def cleaned(logits: Tensor) -> Tensor:
    largest = torch.finfo(torch.float32).max
    return torch.nan_to_num(logits, nan=-torch.inf, posinf=largest, neginf=-torch.inf)


def distribution(x: Tensor, settings: Settings) -> Tensor:
    """Steps 6 and 7: f64 [V] probabilities of adjusted logits; one at a single token when greedy."""
    out = torch.zeros(len(x), dtype=torch.float64)
    order = torch.sort(x, descending=True, stable=True).indices
    if not settings.temperature > 0 or x[order[0]] == -torch.inf:
        out[order[0]] = 1.0
        return out
    order = order[x[order] > -torch.inf]
    if settings.top_k > 0:
        order = order[: settings.top_k]
    mass = ((x[order].double() - x[order[0]].double()) / settings.temperature).exp()
    if settings.top_p < 1:
        before = mass.cumsum(0) - mass
        keep = before < settings.top_p * mass.sum()
        keep[0] = True
        order, mass = order[keep], mass[keep]
    if settings.min_p > 0:
        keep = (mass >= settings.min_p) | (mass == 1.0)
        order, mass = order[keep], mass[keep]
    out[order] = mass / mass.sum()
    return out


def mask_row(masks: Tensor, index: int, vocabulary: int) -> Tensor | None:
    if not 0 <= index < masks.shape[0]:
        return None
    tokens = torch.arange(vocabulary)
    return (masks[index].long()[tokens // 32] >> (tokens % 32) & 1).bool()


@torch.library.custom_op("heliograph::sample", mutates_args=("last_token",))
def sample(
    logits: Tensor, slots: Tensor, lengths: Tensor, prompts: Tensor, temperature: Tensor, top_k: Tensor,
    top_p: Tensor, min_p: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor, bias_ids: Tensor,
    bias_values: Tensor, mask_index: Tensor, masks: Tensor, seed: Tensor, sample_position: Tensor,
    logprob_count: Tensor, history: Tensor, last_token: Tensor, real: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, vocabulary = logits.shape
    ids, logprobs, logprob_ids = _outputs(logits)
    ids.fill_(-1), logprobs.zero_(), logprob_ids.fill_(-1)
    for r in range(rows if real is None else min(int(real), rows)):
        slot = int(slots[r])
        if not 0 <= slot < history.shape[0]:
            continue
        plain = torch.log_softmax(cleaned(logits[r]).double(), dim=0).float()
        wanted = min(max(int(logprob_count[r]), 0), MAX_LOGPROBS, vocabulary)
        largest = torch.sort(cleaned(logits[r]), descending=True, stable=True).indices[:wanted]
        logprobs[r, 1 : 1 + wanted], logprob_ids[r, :wanted] = plain[largest], largest.int()
        settings = Settings(
            float(temperature[r]), int(top_k[r]), float(top_p[r]), float(min_p[r]), float(presence[r]),
            float(frequency[r]), float(repetition[r]),
        )  # fmt: skip
        used = history[slot, : min(max(int(lengths[r]), 0), history.shape[1])]
        biases = [(int(bias_ids[r, i]), float(bias_values[r, i])) for i in range(BIASES)]
        mask = mask_row(masks, int(mask_index[r]), vocabulary)
        x = adjusted(logits[r], settings, used, int(prompts[r]), biases, mask)
        cumulative = distribution(x, settings).cumsum(0)
        u = uniform(int(seed[r]), int(sample_position[r])) * float(cumulative[-1])
        token = int(torch.searchsorted(cumulative, torch.tensor(u, dtype=torch.float64), right=True))
        ids[r], logprobs[r, 0], last_token[slot] = token, plain[token], token
    return ids, logprobs, logprob_ids


def _outputs(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty((rows,), dtype=torch.int32),
        logits.new_empty((rows, 1 + MAX_LOGPROBS), dtype=torch.float32),
        logits.new_empty((rows, MAX_LOGPROBS), dtype=torch.int32),
    )


@sample.register_fake
def _(logits: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(logits)
