"""``capture``: a model becomes a signed core in a folder of cores.

In order: record, write the draft, give the device memory back, let a fresh process check the draft, merge what it
found, let it check once more, sign, rename into place. Whatever fails leaves nothing of it behind.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import nn

from heliograph._native import CudaDevice
from heliograph.capture.again import Again
from heliograph.capture.checker import Checking, check_confirmed, findings, merged
from heliograph.capture.draft import put_recording, with_results
from heliograph.capture.environment import private_triton_cache
from heliograph.capture.export_graph import Retain
from heliograph.capture.provenance import Notes, check_command, completed, factory_sources, processor_name, provenance
from heliograph.capture.record_model import Tell, record
from heliograph.capture.recording import Recording
from heliograph.capture.settings import ONE_CAPTURE
from heliograph.capture.spec import CaptureSpec
from heliograph.core.format import DEFAULT_CAP
from heliograph.core.layout import slice_bytes
from heliograph.core.names import check_name
from heliograph.core.report import Report
from heliograph.core.sign import SigningKey, development_key, scratch_key
from heliograph.core.write import DraftWriter, publish
from heliograph.device.host import open_host
from heliograph.errors import CoreExistsError, HeliographError, UsageError


def capture(
    model: nn.Module,
    spec: CaptureSpec,
    *,
    cores: str | os.PathLike[str],
    name: str | None = None,
    cap: int = DEFAULT_CAP,
    retain: Retain = "template",
    flags: int = 0,
    consume: bool = False,
    sources: Mapping[str, str] | None = None,
    key: SigningKey | None = None,
    device: str = "host",
    index: int = 0,
    again: Again | None = None,
    workers: int = 0,
    memory_limit: int = 0,
    progress: Tell | None = None,
    study: Callable[[Recording], None] | None = None,
) -> Path:
    """Captures a model on a device and returns the folder of its core, below ``cores``.

    name: of the core; left out, ``{arch}-tp{n}-{YYYYMMDDhhmm}`` in UTC. cap: bytes of a weight file at most.
    retain: "template", or "executable" to instantiate every graph while capturing. flags: instantiation flags.
    consume: on the host, the model's tensors are moved into the core's memory, so that they never exist twice; the
    model is left without them. sources: the model's files, path to BLAKE3, for the record. key: signs; left out, this
    machine's development key. device: "host" or "cuda"; of the latter the one with this ``index``. again: how the
    model is made anew for the second capture of an exact census on CUDA; without it words are told apart by range.
    study: called with the recording before it is written; with ``retain="executable"`` it can replay it here.
    workers: threads that run kernels, 0 for all processors. memory_limit: bytes of the device,
    for the checker as well.

    Raises UsageError, CaptureError (an op, a value read, foreign memory, what the model raises, a check that failed),
    DeviceError, CoreExistsError, StorageError.
    """
    cores = Path(cores)
    check_arguments(cores, name=name, cap=cap, device=device)
    key = key or development_key()
    tell = progress or (lambda doing, done, total: None)
    notes = Notes(retain=retain, sources=sources or (factory_sources(again.factory) if again else {}))
    with ONE_CAPTURE, DraftWriter(cores) as writer:
        with ExitStack() as held:
            with _phase(notes, "record"):
                if device == "cuda":
                    recording = _record_cuda(model, spec, again, index, retain, flags, notes, tell)
                else:
                    host = open_host(workers=workers, memory_limit=memory_limit)
                    held.enter_context(_given_back(host.close))
                    recording = record(
                        model, spec, device=host, retain=retain, flags=flags, consume=consume, progress=progress
                    )
                held.enter_context(_given_back(recording.release))
            if study is not None:
                study(recording)
            with _phase(notes, "draft"):
                tell("writing the draft", 0, 0)
                contents = put_recording(recording, writer, cap)
                checking = Checking(scratch_key(), contents.padding, workers, memory_limit, index=index)
                _note_recording(notes, recording)
                base = provenance(notes)
                draft = writer.finish(contents.core, base, contents.literal, checking.key)
        with _phase(notes, "checker"):
            tell("checking the draft", 0, 0)
            report = checking.run(draft, "explore")
            core = with_results(merged(contents.core, report, writer), report.self_tests)
            notes.findings = findings(report)
            _note_report(notes, report)
            draft = writer.finish(core, completed(base, notes), contents.graphs, checking.key)
            check_confirmed(checking.run(draft, "confirm"), draft.core, notes.findings)
        tell("signing", 0, 0)
        return publish(draft, draft.core, completed(base, notes), contents.graphs, key, name)


@private_triton_cache()
def _record_cuda(
    model: nn.Module, spec: CaptureSpec, again: Again | None, index: int, retain: Retain, flags: int, notes: Notes,
    tell: Tell,
) -> Recording:  # fmt: skip
    """Imported here: what a capture on the host does not need."""
    from heliograph.capture.again import second_capture  # noqa: PLC0415
    from heliograph.capture.cuda.graphs import attributed  # noqa: PLC0415
    from heliograph.capture.cuda.record import record_cuda  # noqa: PLC0415
    from heliograph.capture.cuda.session import CudaSession  # noqa: PLC0415

    second = None
    if again is not None:
        tell("capturing in another slot, for the census", 0, 0)
        with _phase(notes, "second capture"):
            second = second_capture(again, spec.slot, index)
    session = CudaSession(spec.slot, index)
    recording, census = record_cuda(
        model, spec, session=session, second=second, retain=retain, flags=flags, progress=tell
    )
    lines = attributed([recorded.nodes for recorded in recording.graphs])
    again_ms = f"second capture: {notes.phases.get('second capture', 0) / 1e6:.0f} ms"
    notes.census = (*census.lines(), *([again_ms] if second is not None else []), lines)
    for line in notes.census:
        tell(line, 0, 0)
    return recording


def check_arguments(cores: Path, *, name: str | None, cap: int, device: str) -> None:
    """What can be refused before there is a model: UsageError, CoreExistsError, CaptureError for another PyTorch."""
    check_command()
    if device not in ("host", "cuda"):
        raise UsageError(
            "reading the arguments", found=f"device {device!r}", required="host or cuda", hint="give one of the two"
        )
    if not isinstance(cap, int):
        raise UsageError(
            "reading the arguments",
            found=f"a cap of {cap!r}",
            required="a number of bytes",
            hint="for example 64 << 20",
        )
    slice_bytes(cap)
    if device == "cuda":
        from heliograph.capture.cuda.session import check_pytorch  # noqa: PLC0415 - not needed on the host

        check_pytorch()
    if name is not None and os.path.lexists(cores / check_name(name)):
        raise CoreExistsError(
            f"capturing the core {name!r}",
            found=f"{cores / name}",
            required="a name that is free",
            hint="choose another name, or leave it out: then the time is part of it",
        )


@contextmanager
def _given_back(give_back: Callable[[], None]) -> Iterator[None]:
    """Gives something back on the way out. Of an error there and one before it, the first is the one that is told."""
    try:
        yield
    except BaseException as error:
        try:
            give_back()
        except HeliographError as second:
            error.add_note(f"then, {second}")
        raise
    give_back()


@contextmanager
def _phase(notes: Notes, name: str) -> Iterator[None]:
    start = time.perf_counter_ns()
    yield
    notes.phases[name] = time.perf_counter_ns() - start


def _note_recording(notes: Notes, recording: Recording) -> None:
    """Device, and what was taken in this process."""
    counters = recording.device.counters()
    costs = [recorded.graph.costs for recorded in recording.graphs]
    notes.families = tuple(image.family for image in recording.kernels.images)
    device = recording.device
    notes.device |= {"arch": device.arch, "kind": device.kind, "processor": processor_name()}
    if isinstance(device, CudaDevice):
        notes.device["name"] = device.name
    notes.costs |= {
        "executables": str(counters["executables_created"]),
        "executables_device_bytes": str(sum(cost.device_bytes for cost in costs)),
        "executables_host_bytes": str(sum(cost.host_bytes for cost in costs)),
        "functions": str(len(recording.kernels.functions)),
        "graphs": str(len(recording.graphs)),
        "mapped_bytes": str(recording.arena.mapped_bytes),
        "modules": str(len(recording.kernels.images)),
        "nodes": str(sum(len(recorded.nodes) for recorded in recording.graphs)),
        "peak_host_bytes": str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
    }


def _note_report(notes: Notes, report: Report) -> None:
    """What the checker measured in its process."""
    notes.costs |= {
        "checker_peak_device_bytes": str(report.peak_device_bytes),
        "checker_peak_host_bytes": str(report.peak_host_bytes),
        "executable_bytes_largest": str(max((g.device_bytes + g.host_bytes for g in report.graphs), default=0)),
        "instantiate_nanoseconds": str(sum(graph.instantiate_nanoseconds for graph in report.graphs)),
    }
    notes.phases |= {f"checker {phase.name}": phase.nanoseconds for phase in report.phases}
