"""The worker's life on a CUDA device, which the fake driver stands for."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from as_cuda import as_cuda
from fake_cuda.control import FakeCuda
from heliograph.core.policy import Policy
from heliograph.core.sign import development_key
from heliograph.core.verify import verify
from heliograph.serve.frames import (
    PROTOCOL,
    Decoder,
    Failed,
    FromWorker,
    Launched,
    Proceed,
    Ready,
    Start,
    Submit,
    encode,
)
from heliograph.serve.worker import main as worker

WAIT = 60.0


def test_a_kernels_fault_while_rows_decode_is_said_at_once_and_ends_the_worker(
    tiny_core: Path, tmp_path: Path, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4"""
    with verify(tiny_core, Policy.local()) as verified:
        core = replace(as_cuda(verified), key=development_key()).write(tmp_path)
        kernel = verified.core.functions[0].name
    monkeypatch.setattr(worker, "leave_with", lambda front: None)  # it would end this process
    monkeypatch.setattr(gc, "freeze", lambda: None)
    front, theirs = socket.socketpair()
    front.settimeout(WAIT)
    codes: list[int] = []
    running = Thread(target=lambda: codes.append(worker.main(theirs.detach(), time.perf_counter_ns())))
    running.start()
    decoder: Decoder[FromWorker] = Decoder(FromWorker)  # type: ignore[arg-type]

    def until(wanted: Callable[[FromWorker], bool]) -> FromWorker:
        while data := front.recv(1 << 16):
            for message in [*decoder.feed(data)]:
                if wanted(message):
                    return message
        raise AssertionError("the worker has ended")

    with front:
        front.sendall(encode(Start(PROTOCOL, str(core))) + encode(Proceed()))
        until(lambda message: isinstance(message, Ready))
        front.sendall(encode(Submit(((1, 0),), (5, 6, 7), 80)))
        until(lambda message: isinstance(message, Launched) and message.entry == "decode")
        fake_cuda.fault_kernel(kernel, "CUDA_ERROR_ILLEGAL_ADDRESS")
        begin = time.monotonic()
        failed = until(lambda message: isinstance(message, Failed))
        assert time.monotonic() - begin < 5.0
        running.join(WAIT)
    assert isinstance(failed, Failed)
    assert (failed.error, codes) == ("DeviceFaultError", [1])
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in failed.found
