"""Models in plain PyTorch: what their recording computes equals what PyTorch computes, within float rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from heliograph._native import HostDevice
from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec, record
from heliograph.capture.examples import example
from heliograph.capture.storages import TORCH_DTYPES
from heliograph.device.host import open_host

BUCKETS = ({"rows": 1}, {"rows": 3})
ROWS = TensorSpec(("rows", 8), "f32")
PICTURES = TensorSpec(("rows", 3, 16, 16), "f32")
SEQUENCES = TensorSpec(("rows", 5, 16), "f32")
TOKENS = TensorSpec(("rows", 6), "i64", low=0, high=63)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Hardswish(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 4, 5), nn.LogSoftmax(-1),
    )  # fmt: skip


def in_place(x: Tensor) -> Tensor:
    y = x.clone().add_(1).mul_(2)
    y[:, 0] = 5.0
    y[:, 1:].relu_()
    return torch.mul(y, 3, out=torch.empty_like(y)).clamp_(0, 7)


def factories(x: Tensor) -> Tensor:
    mask = torch.ones(8, 8, dtype=torch.bool).triu(1)[2]
    table = torch.tensor([[1, 2], [3, 4]])
    x = x @ torch.eye(8) + torch.linspace(0, 1, 8) + torch.arange(8)
    return torch.cat([x.masked_fill(mask, 0.0), x[:, table].flatten(1), x.flip(1)[:, ::2]], 1)


def reductions(x: Tensor) -> Tensor:
    y = torch.stack([x, x * 2], 1).mean(1) + x.var(-1, keepdim=True) + x.amax(-1, keepdim=True) + x.cumsum(-1)
    return torch.where((x > 0).any(-1, keepdim=True), y, -y).softmax(-1) + x.logsumexp(-1, keepdim=True)


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def bert() -> nn.Module:
    return BertModel(
        BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], TensorSpec, Callable[[nn.Module, Tensor], Tensor]]] = {
    "attention": (Attention, SEQUENCES, lambda m, x: m(x)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), SEQUENCES, lambda m, x: m(x)),
    "convolutions": (convolutions, PICTURES, lambda m, x: m(x)),
    "lstm": (lambda: nn.LSTM(16, 8, batch_first=True), SEQUENCES, lambda m, x: m(x)[0]),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(64, 8), nn.LayerNorm(8), nn.Linear(8, 4)),
        TOKENS,
        lambda m, x: m(x),
    ),
    "in place": (lambda: Calls(in_place), ROWS, lambda m, x: m(x)),
    "factories": (lambda: Calls(factories), ROWS, lambda m, x: m(x)),
    "reductions": (lambda: Calls(reductions), ROWS, lambda m, x: m(x)),
    "bfloat16": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.RMSNorm(16), nn.Linear(16, 4)).to(torch.bfloat16),
        TensorSpec(("rows", 8), "bf16"),
        lambda m, x: m(x),
    ),
    "llama of transformers": (llama, TOKENS, lambda m, x: m(input_ids=x, use_cache=False).logits),
    "bert of transformers": (bert, TOKENS, lambda m, x: m(input_ids=x).last_hidden_state),
}


@pytest.fixture(scope="module")
def device() -> Iterator[HostDevice]:
    device = open_host(workers=2)
    yield device
    device.close()


@pytest.mark.parametrize("name", MODELS)
def test_a_recording_computes_what_pytorch_computes(name: str, device: HostDevice) -> None:
    make, inputs, call = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    entry = EntrySpec("run", BUCKETS, {"x": inputs}, lambda m, x: {"y": call(m, x)})
    spec = CaptureSpec("test", (entry,))
    with record(model, spec, device=device, retain="executable") as recording, torch.no_grad():
        for seed, bucket in enumerate((*BUCKETS, *reversed(BUCKETS))):
            data = example(spec, entry, bucket, seed).inputs["x"]
            recording.write("run", bucket, "x", data)
            recording.run("run", **bucket)
            x = torch.frombuffer(bytearray(data), dtype=TORCH_DTYPES[inputs.dtype]).view(inputs.resolve(bucket))
            expected = call(model, x)
            found = torch.frombuffer(bytearray(recording.read("run", bucket, "y")), dtype=expected.dtype)
            rounding = 2e-2 if expected.dtype is torch.bfloat16 else 2e-6
            torch.testing.assert_close(found.view(expected.shape), expected, rtol=10 * rounding, atol=rounding)
