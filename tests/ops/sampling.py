"""Arguments of `sample` by name, and the χ² test."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heliograph.ops.sample import BIASES, NAMES
from heliograph.ops.sample.reference import Settings, adjusted, distribution, mask_row


@dataclass(slots=True)
class Batch:
    """R rows of one request's settings; fields may be replaced row by row. Row r has slot r % slots."""

    logits: Tensor
    settings: Settings = field(default_factory=Settings)
    slots: int = 4
    context: int = 8
    fields: dict[str, Tensor] = field(default_factory=dict)

    def args(self) -> tuple[Tensor, ...]:
        rows, vocabulary = self.logits.shape
        s = self.settings
        integers = {
            "lengths": 0, "prompts": 0, "top_k": s.top_k, "mask_index": -1, "sample_position": 0, "logprob_count": 0,
        }  # fmt: skip
        numbers = {
            "temperature": s.temperature, "top_p": s.top_p, "min_p": s.min_p, "presence": s.presence,
            "frequency": s.frequency, "repetition": s.repetition,
        }  # fmt: skip
        made = {
            "logits": self.logits,
            "slots": torch.arange(rows, dtype=torch.int32) % self.slots,
            **{name: torch.full((rows,), value, dtype=torch.int32) for name, value in integers.items()},
            **{name: torch.full((rows,), value, dtype=torch.float32) for name, value in numbers.items()},
            "bias_ids": torch.full((rows, BIASES), -1, dtype=torch.int32),
            "bias_values": torch.zeros(rows, BIASES),
            "masks": torch.zeros(2, -(-vocabulary // 32), dtype=torch.int32),
            "seed": torch.arange(rows, dtype=torch.int64),
            "history": torch.zeros(self.slots, self.context, dtype=torch.int32),
            "last_token": torch.full((self.slots,), -7, dtype=torch.int32),
            **self.fields,
        }
        if made.keys() != set(NAMES):
            raise ValueError(f"unknown fields {sorted(made.keys() - set(NAMES))}")
        return tuple(made[name] for name in NAMES)

    def probabilities(self, row: int) -> Tensor:
        """The exact distribution of a row, by the reference's full sort in f64."""
        named = self.named()
        slot, length, prompt = (int(named[name][row]) for name in ("slots", "lengths", "prompts"))
        biases = list(zip(named["bias_ids"][row].tolist(), named["bias_values"][row].tolist(), strict=True))
        mask = mask_row(named["masks"], int(named["mask_index"][row]), self.logits.shape[1])
        s = Settings(
            *(float(named[n][row]) if n != "top_k" else int(named[n][row]) for n in Settings.__dataclass_fields__)
        )
        used = named["history"][slot, :length]
        return distribution(adjusted(self.logits[row], s, used, prompt, biases, mask), s)

    def named(self) -> dict[str, Tensor]:
        return dict(zip(NAMES, self.args(), strict=True))


def chi_squared_p(counts: Tensor, probabilities: Tensor) -> float:
    """The chance of counts at least this far from the probabilities. Zero if something impossible was drawn.

    Tokens expected less than ten times are one cell.
    """
    counts, expected = counts.double(), probabilities.double() * counts.sum()
    if counts[expected == 0].sum() > 0:
        return 0.0
    common = expected >= 10
    rare = torch.stack((counts[~common].sum(), expected[~common].sum()))
    cells, wanted = counts[common], expected[common]
    if rare[1] > 0:
        cells, wanted = torch.cat((cells, rare[:1])), torch.cat((wanted, rare[1:]))
    if len(cells) < 2:
        return 1.0
    statistic = ((cells - wanted) ** 2 / wanted).sum()
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2).double(), statistic / 2))
