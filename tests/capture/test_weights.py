"""Parameters: named in the order of the state dict, stored once, moved byte for byte, put back as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from blake3 import blake3
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from heliograph.capture.arena import Arena
from heliograph.capture.storages import TORCH_DTYPES
from heliograph.capture.weights import fake_weights, model_weights, store, swapped
from heliograph.device.host import open_host
from heliograph.errors import UsageError


@pytest.fixture
def arena() -> Iterator[Arena]:
    device = open_host(workers=1)
    with Arena(device, 0, {"weights": 1 << 20}) as arena:
        yield arena
    device.close()


def holding(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def test_weights_stand_in_the_order_of_the_state_dict_then_what_it_leaves_out() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[0].register_buffer("scale", torch.ones(3), persistent=False)
    assert [weight.name for weight in model_weights(model)] == [*model.state_dict(), "0.scale"]


def test_tied_tensors_are_one_weight_with_every_name() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    (tied, *others) = model_weights(model)
    assert (tied.name, tied.aliases) == ("a.weight", ("b.weight",))
    assert [weight.name for weight in others] == ["a.bias", "b.bias"]


def test_two_views_of_one_storage_are_two_weights() -> None:
    whole = torch.arange(6.0)
    assert len(model_weights(holding(a=whole[:3], b=whole[3:]))) == 2


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=TORCH_DTYPES.keys())
def test_the_region_holds_the_bytes_of_a_weight(dtype: torch.dtype, arena: Arena) -> None:
    values = torch.arange(12).to(dtype).view(3, 4)
    (weight,) = model_weights(holding(w=values))
    described = store(weight, arena.region("weights"), 256, consume=False)
    raw = bytes(values.contiguous().view(torch.uint8).flatten().tolist())
    assert arena.region("weights").read(256, weight.size) == raw
    assert (described.offset, described.size, described.shape) == (256, len(raw), (3, 4))
    assert described.stored == described.source == blake3(raw).hexdigest()


def test_a_weight_that_is_not_contiguous_is_stored_row_by_row(arena: Arena) -> None:
    values = torch.arange(12.0).view(3, 4).t()
    (weight,) = model_weights(holding(w=values))
    store(weight, arena.region("weights"), 0, consume=False)
    assert memoryview(arena.region("weights").read(0, 48)).cast("f").tolist() == values.flatten().tolist()


def test_a_packed_weight_says_what_it_stands_for(arena: Arena) -> None:
    packed = nn.Parameter(torch.zeros(2, 34, dtype=torch.uint8), requires_grad=False)
    packed.heliograph_layout, packed.heliograph_shape, packed.heliograph_source = "q8_0", (2, 32), "ab" * 32
    model = nn.Module()
    model.register_parameter("w", packed)
    (weight,) = model_weights(model)
    described = store(weight, arena.region("weights"), 0, consume=False)
    assert (described.layout, described.shape, described.dtype) == ("q8_0", (2, 32), "u8")
    assert described.source == "ab" * 32 != described.stored
    (fake,) = fake_weights((weight,), FakeTensorMode()).values()
    assert fake.heliograph_layout == "q8_0"


def test_a_consumed_model_has_given_its_memory_away(arena: Arena) -> None:
    model = nn.Linear(4, 4)
    for i, weight in enumerate(model_weights(model)):
        store(weight, arena.region("weights"), 1024 * i, consume=True)
    assert [parameter.numel() for parameter in model.parameters()] == [0, 0]


def test_the_model_sees_tensors_without_values_and_has_its_own_back_afterwards() -> None:
    model = nn.LSTM(2, 2)
    before = {name: id(tensor) for name, tensor in model.named_parameters()}
    weights = model_weights(model)
    fakes = fake_weights(weights, FakeTensorMode())

    def inside() -> None:
        with swapped(model, weights, fakes):
            assert all(tensor is fakes[name] for name, tensor in model.named_parameters())
            assert all(tensor is fakes[name] for name, tensor in zip(fakes, model._flat_weights, strict=True))
            raise KeyError("whatever happens inside")

    with pytest.raises(KeyError):
        inside()
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == before
    assert [id(tensor) for tensor in model._flat_weights] == list(before.values())


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (torch.zeros(2, dtype=torch.complex64), torch.zeros(2)),
        (torch.zeros(2, device="meta"), torch.zeros(2, device="cpu")),
        (torch.zeros(2, 2).to_sparse(), torch.zeros(2, 2)),
    ],
)
def test_weights_that_cannot_be_stored_are_refused_by_name(wrong: torch.Tensor, right: torch.Tensor) -> None:
    with pytest.raises(UsageError) as refused:
        model_weights(holding(w=wrong))
    assert "'w'" in refused.value.doing
    model_weights(holding(w=right))
