"""What a CUDA driver answers to a fixed list of requests: recorded on a real one, and reproduced by the fake.

python tests/fake_cuda/transcript.py > tests/fake_cuda/transcript.json    (on a GPU)

An answer is a value as text, or the call and the symbolic name of the error. Sizes and addresses that differ from
machine to machine are left out.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from heliograph._native import CudaDevice, Function, Module, SealedImage
from heliograph.core.format import region_base
from heliograph.errors import HeliographError

HERE = Path(__file__).parent
PTX = HERE.parent / "device" / "nodes.ptx"
RECORD = HERE / "transcript.json"
# The kernels of nodes.ptx as an image that the fake driver reads.
TEXT = b"""fake-image sm_90
mixed 0:1 4:12 16:2 18:128 152:8
nothing
tiled 0:8
sum 0:8
bounded 0:8
global table 64 1
"""
Answers = dict[str, str]


def told(error: HeliographError) -> str:
    """The call and the symbolic name of a driver's error; of one of ours its type."""
    found = getattr(error, "found", "")
    return found.split(" (")[0] if "CUDA_ERROR" in found else type(error).__name__


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


class Questions:
    def __init__(self, device: CudaDevice, image: bytes) -> None:
        self.device = device
        self.image = image
        self.answers: Answers = {}
        self.memory = device.reserve(region_base(6, "io"), 64 << 20)
        self.memory.map(0, device.granularity)
        self.module: Module = device.load_module(SealedImage("nodes", image))

    def ask(self, name: str, question: Callable[[], object]) -> None:
        try:
            self.answers[name] = str(question())
        except HeliographError as error:
            self.answers[name] = told(error)

    def function(self, name: str) -> Function:
        return self.module.function(name)

    def everything(self) -> Answers:
        self.images()
        self.functions()
        self.attributes()
        self.edges()
        self.nodes()
        self.flags()
        self.captures()
        self.addresses()
        return self.answers

    def images(self) -> None:
        self.ask("image that is none", lambda: self.device.load_module(SealedImage("none", b"no image at all")))
        self.ask("function that is not there", lambda: self.module.function("softmax"))
        self.ask("functions", lambda: sorted(self.module.function_names()))
        self.ask("variable that is not there", lambda: self.module.global_address("nothing"))
        self.ask("bytes of a variable", lambda: self.module.global_address("table")[1])

    def functions(self) -> None:
        for name in ("mixed", "nothing", "tiled", "bounded"):
            self.ask(f"parameters of {name}", lambda name=name: self.function(name).params)
            self.ask(f"attributes of {name}", lambda name=name: self.function(name).attributes)
        optin = self.device.shared_optin
        for number, value in ((8, optin), (8, optin + 1), (9, 50), (9, 101), (14, 1)):
            self.ask(f"attribute {number} raised to {value}", lambda n=number, v=value: self.raised(n, v))

    def raised(self, number: int, value: int) -> int:
        function = self.device.load_module(SealedImage("nodes", self.image)).function("tiled")
        function.raise_attributes([(number, value)])
        return dict(function.attributes)[number]

    def attributes(self) -> None:
        window = struct.pack("<QQfii", self.memory.address, 4096, 0.5, 2, 1)
        values = {
            "plain": [],
            "1": [(1, window)],
            "2": [(2, words(1))],
            "4": [(4, words(2, 1, 1))],
            "4 of 16": [(4, words(16, 1, 1))],
            "4 of 3, which does not divide the grid": [(4, words(3, 1, 1))],
            "4 of 32": [(4, words(32, 1, 1))],
            "5": [(5, words(1))],
            "8": [(8, words(-1))],
            "9": [(9, b"\x01\x00")],
            "10": [(10, words(1))],
            "14": [(14, words(50))],
            "14 of 101": [(14, words(101))],
            **{str(number): [(number, words(1))] for number in (0, 3, 6, 7, 12, 13, 15, 16, 17, 63)},
        }
        for name, attrs in values.items():
            self.ask(f"node attribute {name}", lambda attrs=attrs: self.kept(attrs))

    def kept(self, attrs: list[tuple[int, bytes]]) -> list[int]:
        """The ids that differ from a plain node's afterwards."""
        template = self.device.create_template()
        template.add_kernel(self.function("nothing"), (32, 1, 1), b"", attrs=attrs)
        (node,) = template.nodes()
        return [number for number, _ in node.attrs]

    def edges(self) -> None:
        for port, kind in ((0, 0), (1, 1), (2, 0), (2, 1)):
            data = bytes([port, 0, kind, 0, 0, 0, 0, 0])
            self.ask(f"edge ({port}, {kind}) between kernels", lambda data=data: self.joined(data, empty=False))
            self.ask(f"edge ({port}, {kind}) from an empty node", lambda data=data: self.joined(data, empty=True))
        self.ask("edge twice", self.doubled)

    def joined(self, data: bytes, *, empty: bool) -> bool:
        template = self.device.create_template()
        nothing = self.function("nothing")
        if empty:
            template.add_empty()
        else:
            template.add_kernel(nothing, (1, 1, 1), b"")
        template.add_kernel(nothing, (1, 1, 1), b"", [0], data=[data])
        return template.edges() == [(0, 1, data)]

    def doubled(self) -> int:
        template = self.device.create_template()
        template.add_empty()
        template.add_empty([0, 0])
        return template.edge_count

    def nodes(self) -> None:
        base = self.memory.address
        create = self.device.create_template
        nothing, bounded = self.function("nothing"), self.function("bounded")
        self.ask("grid of 0", lambda: create().add_kernel(nothing, (0, 1, 1), b""))
        self.ask("block of 0", lambda: create().add_kernel(nothing, (1, 1, 1), b"", block=(0, 1, 1)))
        self.ask("block of 2048", lambda: self.run(lambda t: t.add_kernel(nothing, (1, 1, 1), b"", block=(2048, 1, 1))))
        self.ask("block above the bounds", lambda: self.run(
            lambda t: t.add_kernel(bounded, (1, 1, 1), struct.pack("<Q", base), block=(256, 1, 1))))  # fmt: skip
        self.ask("memset of 2-byte rows", lambda: self.run(
            lambda t: t.add_memset(base, 7, 8, element=2, height=2, pitch=512)))  # fmt: skip
        self.ask("memset of nothing", lambda: create().add_memset(base, 7, 0))
        self.ask("copy of nothing", lambda: create().add_memcpy(base, base + 64, 0))

    def run(self, add: Callable[..., object]) -> str:
        template = self.device.create_template()
        add(template)
        stream = self.device.create_stream()
        template.instantiate().launch(stream)
        stream.synchronize()
        return "done"

    def flags(self) -> None:
        template = self.device.create_template()
        template.add_empty()
        for flags in (0, 1, 8, 9):
            self.ask(f"flags {flags}", lambda flags=flags: template.instantiate(flags).flags)

    def captures(self) -> None:
        for name, misuse in (
            ("synchronised", lambda stream: stream.synchronize()),
            ("queried", lambda stream: stream.query()),
            ("begun twice", lambda stream: stream.begin_capture()),
            ("device synchronised", lambda _: self.device.synchronize()),
            ("mapped", lambda _: self.memory.map(4 << 20, self.device.granularity)),
        ):
            self.ask(f"capture in which is {name}", lambda misuse=misuse: self.captured(misuse))
        self.ask("capture ended that was not begun", lambda: self.device.create_stream().end_capture())
        self.ask("capture of a fork that is not joined", self.unjoined)
        self.ask("event of a capture waited for outside", self.waited_outside)

    def captured(self, misuse: Callable[..., object]) -> str:
        stream = self.device.create_stream()
        stream.begin_capture()
        try:
            misuse(stream)
            during = "done"
        except HeliographError as error:
            during = told(error)
        try:
            return f"{during}; ended with {stream.end_capture().node_count} nodes"
        except HeliographError as error:
            return f"{during}; {told(error)}"

    def unjoined(self) -> int:
        a, b, fork = self.device.create_stream(), self.device.create_stream(), self.device.create_event()
        a.begin_capture()
        a.record(fork)
        b.wait(fork)
        b.memset(self.memory.address, 0, 8)
        return a.end_capture().node_count

    def waited_outside(self) -> str:
        stream, inside = self.device.create_stream(), self.device.create_event()
        stream.begin_capture()
        stream.record(inside)
        stream.end_capture()
        inside.synchronize()
        return "done"

    def addresses(self) -> None:
        base = self.memory.address
        self.ask("address reserved twice", lambda: self.device.reserve(base, 64 << 20))
        self.ask("address that is mapped", lambda: self.known(base))
        self.ask("address that is reserved only", lambda: self.known(base + self.device.granularity))
        self.ask("address of nobody", lambda: self.known(8))
        self.ask("names of limits", lambda: sorted(self.device.limits()))
        self.ask("limit that is not there", lambda: self.device.set_limit("sync_depth", 4))

    def known(self, address: int) -> str:
        info = self.device.pointer_info(address)
        return "unknown" if info is None else info.kind


def transcript(device: CudaDevice, image: bytes) -> Answers:
    return Questions(device, image).everything()


if __name__ == "__main__":
    print(json.dumps(transcript(CudaDevice(), PTX.read_bytes()), indent=1))
