"""For an op that writes into its arguments, the op that returns the same values in fresh tensors.

``aten.add_.Tensor`` and ``aten.add.out`` both have ``aten.add.Tensor``. A recorder that has no kernel for the
writing form records the fresh form and a copy, which is right whatever overlaps what.
"""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload


def written_arguments(op: OpOverload) -> tuple[str, ...]:
    """Names of the arguments that the op writes into."""
    return tuple(a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


@cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """The overload that takes the same arguments and writes none of them; None where there is none."""
    schema = op._schema
    packet_name = schema.name.split("::")[1]
    if schema.arguments and schema.arguments[0].name in written_arguments(op) and packet_name.endswith("_"):
        packet_name = packet_name[:-1]
    packet = getattr(getattr(torch.ops, op.namespace), packet_name, None)
    if packet is None:
        return None
    wanted = _signature(op, without_out=True)
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        if not written_arguments(overload) and _signature(overload, without_out=False) == wanted:
            return overload if isinstance(overload, OpOverload) else None
    return None


def _signature(op: OpOverload, *, without_out: bool) -> list[tuple[str, str]]:
    return [
        (a.name, str(a.type))
        for a in op._schema.arguments
        if not (without_out and a.kwarg_only and a.alias_info is not None and a.alias_info.is_write)
    ]
