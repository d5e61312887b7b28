"""Kernel images by CUPTI: every image that is loaded, and which of them a kernel came from, by handle alone."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fake_cuda.build import ROOT, compiler
from fake_cuda.control import IMAGE, FakeCuda
from fake_cupti.control import App, FakeCupti
from heliograph._native import CudaDevice, CudaImages, SealedImage
from heliograph.errors import CaptureError, DriverError, UsageError

A = b"fake-image sm_90\ntwin 0:8\nonly_a\n"
B = b"fake-image sm_90\ntwin 0:8 8:4\nonly_b\n"
C = b"fake-image sm_90\ntwin\nonly_c\n"
INTERNAL = b"fake-image sm_90\ninternal\n"


@pytest.fixture
def images(fake_cupti: FakeCupti) -> Iterator[CudaImages]:
    made = CudaImages()
    yield made
    made.close()


@pytest.fixture
def device(request: pytest.FixtureRequest, images: CudaImages) -> Iterator[CudaDevice]:
    made = CudaDevice()
    yield made
    made.close()
    request.node.funcargs.clear()  # what a test was given is not alive for longer than the test


@pytest.fixture
def app(fake_cuda: FakeCuda, device: CudaDevice) -> Iterator[App]:
    made = App(fake_cuda)
    yield made
    made.close()


def text(image: bytes) -> bytes:
    """The text that an image was made of: it stands in the object file that CUPTI hands out."""
    start = image.index(b"fake-image")
    return image[start : image.index(b"\0", start)]


def of(images: CudaImages, device: CudaDevice, kernel: ctypes.c_void_p) -> bytes:
    return text(images.image(images.number_of(device, kernel=kernel.value or 0)))


# ---- which image ----


def test_one_kernel_name_in_three_images(images: CudaImages, device: CudaDevice, app: App) -> None:
    libraries = [app.load_library(image) for image in (A, B, C)]
    assert images.count() == 0  # lazily: nothing has touched a kernel
    kernels = [app.kernel(library, "twin") for library in libraries]
    for kernel in reversed(kernels):
        app.handle("cuKernelGetFunction", kernel)
    assert images.count() == 3
    assert [of(images, device, kernel) for kernel in kernels] == [A, B, C]
    assert [of(images, device, app.kernel(libraries[1], "only_b"))] == [B]
    for library in libraries:
        app.call("cuLibraryUnload", library)


def test_two_functions_of_one_mangled_name(images: CudaImages, device: CudaDevice) -> None:
    modules = [device.load_module(SealedImage(str(i), image)) for i, image in enumerate((A, B))]
    numbers = [images.number(module.function("twin")) for module in modules]
    assert [text(images.image(number)) for number in numbers] == [A, B]
    assert numbers == [images.number(m.function(name)) for m, name in zip(modules, ("only_a", "only_b"), strict=True)]


def test_nodes_of_a_captured_graph_lead_to_the_images_of_their_kernels(
    images: CudaImages, device: CudaDevice, app: App
) -> None:
    """Launched as kernels and as functions, of libraries and modules, in a graph that somebody else captured."""
    libraries = [app.load_library(image) for image in (A, B, C)]
    module = app.handle("cuModuleLoadData", A + b"more\n")
    kernels = [app.kernel(library, "twin") for library in libraries]
    launched = [
        *kernels,
        app.handle("cuKernelGetFunction", kernels[1]),
        app.handle("cuModuleGetFunction", module, b"twin"),
    ]
    stream = app.handle("cuStreamCreate", 1)
    app.call("cuStreamBeginCapture", stream, 1)
    for function in launched:
        app.launch(function, stream, ctypes.c_uint64(7), ctypes.c_uint32(1))
    graph = ctypes.c_void_p()
    app.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    template = device.borrow_template(graph.value or 0)
    functions = [node.function for node in template.nodes()]
    found = [text(images.image(images.number(function))) for function in functions if function]
    assert found == [A, B, C, B, A + b"more\n"]
    del template, functions
    app.call("cuGraphDestroy", graph)
    app.call("cuStreamDestroy", stream)
    app.call("cuModuleUnload", module)
    for library in libraries:
        app.call("cuLibraryUnload", library)


def test_an_image_is_one_that_can_be_loaded_again(images: CudaImages, device: CudaDevice) -> None:
    module = device.load_module(SealedImage("first", IMAGE))
    image = images.image(images.number(module.function("mixed")))
    again = device.load_module(SealedImage("again", image))
    assert again.function_names() == module.function_names()
    assert images.image(images.number(again.function("mixed"))) == image
    assert images.number(again.function("mixed")) != images.number(module.function("mixed"))


CALLS: dict[str, Callable[[App, ctypes.c_void_p, ctypes.c_void_p], object]] = {
    "cuKernelGetFunction": lambda app, library, kernel: app.handle("cuKernelGetFunction", kernel),
    "cuKernelSetAttribute": lambda app, library, kernel: app.call("cuKernelSetAttribute", 8, 64 << 10, kernel, 0),
    "cuKernelGetAttribute": lambda app, library, kernel: app.call(
        "cuKernelGetAttribute", ctypes.byref(ctypes.c_int()), 0, kernel, 0
    ),
    "cuLibraryGetModule": lambda app, library, kernel: app.handle("cuLibraryGetModule", library),
    "cuLibraryGetGlobal": lambda app, library, kernel: app.result(
        "cuLibraryGetGlobal", ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_size_t()), library, b"none"
    ),
    "cuLaunchKernel": lambda app, library, kernel: launch(app, kernel),
    "cuLaunchKernelEx": lambda app, library, kernel: launch_ex(app, kernel),
}


def launch(app: App, kernel: ctypes.c_void_p) -> None:
    stream = app.handle("cuStreamCreate", 1)
    app.launch(kernel, stream, ctypes.c_uint64(7))
    app.call("cuStreamSynchronize", stream)
    app.call("cuStreamDestroy", stream)


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


def launch_ex(app: App, kernel: ctypes.c_void_p) -> None:
    stream = app.handle("cuStreamCreate", 1)
    config = LaunchConfig((1, 1, 1), (1, 1, 1), 0, stream, None, 0)
    value = ctypes.c_uint64(7)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    app.call("cuLaunchKernelEx", ctypes.byref(config), kernel, arguments, None)
    app.call("cuStreamSynchronize", stream)
    app.call("cuStreamDestroy", stream)


@pytest.mark.parametrize("call", CALLS)
def test_an_image_that_arrives_inside_a_call_is_the_one_the_call_is_about(
    images: CudaImages, device: CudaDevice, app: App, call: str
) -> None:
    """By the kernel, and by the function that a node may hold in its place."""
    other = app.load_library(B)
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    assert images.count() == 0
    CALLS[call](app, library, kernel)
    assert images.count() == 1
    app.handle("cuKernelGetFunction", app.kernel(other, "twin"))
    function = app.handle("cuKernelGetFunction", kernel)
    assert of(images, device, kernel) == A
    assert text(images.image(images.number_of(device, function=function.value or 0))) == A
    assert text(images.image(images.number_of(device, kernel.value or 0, function.value or 0))) == A
    for each in (other, library):
        app.call("cuLibraryUnload", each)


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuModuleLoadDataEx"])
def test_an_image_that_a_load_gives_out(images: CudaImages, device: CudaDevice, app: App, call: str) -> None:
    more = (0, None, None) if call.endswith("Ex") else ()
    modules = [app.handle(call, image, *more) for image in (A, B)]
    functions = [app.handle("cuModuleGetFunction", module, b"twin") for module in modules]
    found = [text(images.image(images.number_of(device, function=f.value or 0))) for f in functions]
    assert found == [A, B]
    for module in modules:
        app.call("cuModuleUnload", module)


def test_libraries_that_are_loaded_eagerly(
    fake_cuda: FakeCuda, images: CudaImages, device: CudaDevice, app: App
) -> None:
    fake_cuda.load_eagerly()
    libraries = [app.load_library(image) for image in (A, B)]
    assert images.count() == 2
    assert [of(images, device, app.kernel(library, "twin")) for library in libraries] == [A, B]
    for library in libraries:
        app.call("cuLibraryUnload", library)


@pytest.mark.parametrize("eager", [True, False])
def test_a_library_of_several_images(
    fake_cuda: FakeCuda, images: CudaImages, device: CudaDevice, app: App, eager: bool
) -> None:
    """Loaded at once, their load says nothing of kernels: what each has code for decides among them."""
    if eager:
        fake_cuda.load_eagerly()
    more = b"fake-image sm_90\nanother 0:4\n"
    library = app.load_library(A + more)
    names = ("another", "only_a", "twin")
    kernels = [app.kernel(library, name) for name in names]
    for kernel in kernels:
        app.handle("cuKernelGetFunction", kernel)
    assert images.count() == 2
    assert [of(images, device, kernel) for kernel in kernels] == [more, A, A]
    functions = [app.handle("cuKernelGetFunction", kernel).value or 0 for kernel in kernels]
    found = [text(images.image(images.number_of(device, function=function))) for function in functions]
    assert found == [more, A, A]
    app.call("cuLibraryUnload", library)


def test_an_image_of_the_drivers_own_does_not_become_the_kernels(
    fake_cuda: FakeCuda, images: CudaImages, device: CudaDevice, app: App
) -> None:
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    fake_cuda.load_inside("cuLaunchKernel", INTERNAL)
    launch(app, kernel)
    assert images.count() == 2
    assert of(images, device, kernel) == A
    fake_cuda.load_inside("cuLaunchKernel", INTERNAL)
    launch(app, kernel)  # whose own image is there already
    assert images.count() == 3
    assert of(images, device, kernel) == A
    app.call("cuLibraryUnload", library)


def test_two_images_that_a_call_cannot_tell_apart_are_refused(
    fake_cuda: FakeCuda, images: CudaImages, device: CudaDevice, app: App
) -> None:
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    fake_cuda.load_inside("cuKernelGetFunction", C)
    app.handle("cuKernelGetFunction", kernel)
    with pytest.raises(CaptureError) as refused:
        images.number_of(device, kernel=kernel.value or 0)
    assert "2 different images" in refused.value.found
    assert of(images, device, app.kernel(library, "only_a")) == A
    app.call("cuLibraryUnload", library)


def test_one_image_loaded_twice_is_no_doubt(
    fake_cuda: FakeCuda, images: CudaImages, device: CudaDevice, app: App
) -> None:
    """As for two devices."""
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    fake_cuda.load_inside("cuKernelGetFunction", A)
    app.handle("cuKernelGetFunction", kernel)
    assert images.count() == 2
    assert of(images, device, kernel) == A
    app.call("cuLibraryUnload", library)


def test_a_damaged_image_is_kept_as_it_is_and_read_no_further(
    fake_cupti: FakeCupti, images: CudaImages, device: CudaDevice
) -> None:
    """Its functions are looked up by handle all the same; where its sections lie outside, nothing is read."""
    whole = images.image(images.number(device.load_module(SealedImage("whole", A)).function("twin")))
    draw = random.Random(4)
    for step in range(300):
        data = bytearray(whole[: draw.randrange(1, len(whole) + 1)] if step % 2 else whole)
        for _ in range(draw.randrange(4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if step % 3 == 0 and len(data) >= 64:
            at = draw.choice((40, 58, 60, 62))  # where the sections are, their size, number and names
            data[at : at + 2] = draw.randbytes(2)
        fake_cupti.replace_image(bytes(data))
        module = device.load_module(SealedImage("damaged", A))
        assert images.image(images.count() - 1) == data
        with suppress(CaptureError):  # it may say that it has no such function
            assert images.number(module.function("twin")) == images.count() - 1


def test_a_kernel_whose_image_was_not_seen_is_refused_although_its_name_was(
    images: CudaImages, device: CudaDevice, app: App, fake_cuda: FakeCuda
) -> None:
    seen = app.load_library(A)
    app.handle("cuKernelGetFunction", app.kernel(seen, "twin"))
    images.close()
    unseen = app.load_library(A)
    kernel = app.kernel(unseen, "twin")
    function = app.handle("cuKernelGetFunction", kernel)
    for handles in ((kernel.value or 0, 0), (0, function.value or 0)):
        with pytest.raises(CaptureError) as refused:
            images.number_of(device, *handles)
        assert "twin" in refused.value.doing
        assert "none of the 1 images" in refused.value.found
        assert "names are no proof" in refused.value.hint
    assert of(images, device, app.kernel(seen, "twin")) == A
    module = device.load_module(SealedImage("unseen", B))
    with pytest.raises(CaptureError):
        images.number(module.function("twin"))
    for library in (seen, unseen):
        app.call("cuLibraryUnload", library)


def test_images_that_no_handle_leads_to_are_told(
    fake_cuda: FakeCuda, images: CudaImages, device: CudaDevice, app: App
) -> None:
    fake_cuda.load_inside("cuLibraryUnload", C)
    app.call("cuLibraryUnload", app.load_library(A))
    images.close()
    library = app.load_library(A)
    with pytest.raises(CaptureError) as refused:
        images.number_of(device, kernel=app.kernel(library, "twin").value or 0)
    assert "1 loaded in cuLibraryUnload" in refused.value.found
    app.call("cuLibraryUnload", library)


def test_an_unloaded_image_is_nobodys(images: CudaImages, device: CudaDevice, app: App) -> None:
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    app.handle("cuKernelGetFunction", kernel)
    assert of(images, device, kernel) == A
    kept = images.number_of(device, kernel=kernel.value or 0)
    app.call("cuLibraryUnload", library)
    assert text(images.image(kept)) == A


def test_a_kernel_that_nothing_touched_is_loaded_when_it_is_asked_for(
    images: CudaImages, device: CudaDevice, app: App
) -> None:
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    assert of(images, device, kernel) == A
    app.call("cuLibraryUnload", library)


def test_calls_in_a_callback_do_not_come_back_for_ever(
    fake_cuda: FakeCuda, fake_cupti: FakeCupti, images: CudaImages, device: CudaDevice, app: App
) -> None:
    """The library of a kernel is asked for inside the callback, which CUPTI tells again."""
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    asked, told = fake_cuda.calls("cuKernelGetLibrary"), fake_cupti.told()
    app.handle("cuKernelGetFunction", kernel)
    assert fake_cuda.calls("cuKernelGetLibrary") == asked + 1
    assert fake_cupti.told() == told + 5  # begin, image, begin and end of the question, end
    app.handle("cuKernelGetFunction", kernel)
    assert fake_cuda.calls("cuKernelGetLibrary") == asked + 1
    app.call("cuLibraryUnload", library)


def test_threads_load_at_once(images: CudaImages, device: CudaDevice, fake_cuda: FakeCuda) -> None:
    found: dict[int, bytes] = {}
    wanted = {n: b"fake-image sm_90\ntwin 0:8\nonly_%d\n" % n for n in range(8)}

    def work(number: int) -> None:
        app = App(fake_cuda)
        for _ in range(5):
            library = app.load_library(wanted[number])
            kernel = app.kernel(library, "twin")
            launch(app, kernel)
            found[number] = of(images, device, kernel)
            app.call("cuLibraryUnload", library)
        app.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted
    assert images.count() == 40


def test_a_number_that_is_none_is_refused(images: CudaImages, device: CudaDevice) -> None:
    for read in (images.image, images.library):
        with pytest.raises(UsageError):
            read(0)
    with pytest.raises(CaptureError):
        images.number_of(device)


# ---- the subscriber ----


def test_another_subscriber_is_refused_and_the_likely_ones_are_named(fake_cupti: FakeCupti) -> None:
    fake_cupti.attach_tool()
    with pytest.raises(CaptureError) as refused:
        CudaImages()
    for tool in ("Nsight", "cuda-gdb", "compute-sanitizer"):
        assert tool in refused.value.hint
    fake_cupti.reset()
    CudaImages().close()


def test_a_second_one_in_this_process_is_refused_until_the_first_is_closed(fake_cupti: FakeCupti) -> None:
    first = CudaImages()
    with pytest.raises(CaptureError) as refused:
        CudaImages()
    assert "still open" in refused.value.found
    first.close()
    first.close()
    assert not fake_cupti.subscribed()
    second = CudaImages()
    del second
    gc.collect()
    assert not fake_cupti.subscribed()


def test_a_closed_one_hears_nothing_more_and_keeps_what_it_heard(
    fake_cupti: FakeCupti, images: CudaImages, device: CudaDevice, app: App
) -> None:
    library = app.load_library(A)
    kernel = app.kernel(library, "twin")
    app.handle("cuKernelGetFunction", kernel)
    images.close()
    told = fake_cupti.told()
    other = app.load_library(B)
    app.handle("cuKernelGetFunction", app.kernel(other, "twin"))
    assert fake_cupti.told() == told
    assert images.count() == 1
    assert of(images, device, kernel) == A
    for each in (library, other):
        app.call("cuLibraryUnload", each)


@pytest.mark.parametrize("call", ["cuptiSubscribe", "cuptiEnableCallback", "cuptiEnableDomain"])
@pytest.mark.parametrize("code", ["CUPTI_ERROR_NOT_INITIALIZED", "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"])
def test_a_call_that_fails_leaves_nobody_subscribed(fake_cupti: FakeCupti, call: str, code: str) -> None:
    fake_cupti.fail(call, code)
    with pytest.raises(CaptureError) as refused:
        CudaImages()
    assert call in refused.value.found
    assert "sentence" in refused.value.found
    assert not fake_cupti.subscribed()
    CudaImages().close()


def test_an_unsubscription_that_fails_is_told_and_not_tried_again(fake_cupti: FakeCupti) -> None:
    images = CudaImages()
    fake_cupti.fail("cuptiUnsubscribe", "CUPTI_ERROR_INVALID_PARAMETER")
    with pytest.raises(CaptureError) as refused:
        images.close()
    assert "cuptiUnsubscribe" in refused.value.found
    images.close()
    fake_cupti.reset()


def test_a_code_without_a_sentence_is_told_by_its_number(fake_cupti: FakeCupti) -> None:
    fake_cupti.fail_with_number("cuptiSubscribe", 998)
    with pytest.raises(CaptureError) as refused:
        CudaImages()
    assert "998" in refused.value.found


@pytest.mark.parametrize("entry", ["cuKernelGetLibrary", "cuLibraryGetKernel", "cuLibraryGetModule", "cuFuncGetModule"])
def test_a_driver_without_an_entry_point_that_is_needed_is_refused(
    fake_cuda: FakeCuda, fake_cupti: FakeCupti, entry: str
) -> None:
    fake_cuda.hide(entry)
    with pytest.raises(DriverError) as refused:
        CudaImages()
    assert entry in refused.value.found
    assert not fake_cupti.subscribed()


def test_it_subscribes_before_the_driver_is_initialised(fake_cuda: FakeCuda, fake_cupti: FakeCupti) -> None:
    fake_cupti.fail("cuptiSubscribe", "CUPTI_ERROR_UNKNOWN")
    with pytest.raises(CaptureError):
        CudaImages()
    assert fake_cuda.calls("cuInit") == 0
    CudaImages().close()
    assert fake_cuda.calls("cuInit") == 1


def test_the_variable_names_the_library(fake_cupti: FakeCupti) -> None:
    done = run(NAMED.format(""), HELIOGRAPH_LIBCUPTI=str(fake_cupti.path))
    assert done.stdout.strip() == str(fake_cupti.path)


# ---- which CUPTI ----


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process in which no CUPTI is mapped yet; HELIOGRAPH_LIBCUDA is the fake's, as here."""
    kept = {name: value for name, value in os.environ.items() if name != "HELIOGRAPH_LIBCUPTI"}
    return subprocess.run([sys.executable, "-c", script], env={**kept, **environment}, capture_output=True, text=True)


NAMED = "from heliograph._native import CudaImages\nprint(CudaImages({!r}).cupti)"


def test_without_any_the_error_says_where_it_looked(fake_cupti: FakeCupti) -> None:
    done = run(NAMED.format(""))
    assert "CaptureError" in done.stderr
    assert "HELIOGRAPH_LIBCUPTI" in done.stderr


def test_the_named_one_comes_before_the_variables(fake_cupti: FakeCupti) -> None:
    done = run(NAMED.format(str(fake_cupti.path)), HELIOGRAPH_LIBCUPTI="/nowhere/libcupti.so.13")
    assert done.stdout.strip() == str(fake_cupti.path)
    done = run(NAMED.format("/nowhere/libcupti.so.13"), HELIOGRAPH_LIBCUPTI=str(fake_cupti.path))
    assert "/nowhere/libcupti.so.13" in done.stderr


def test_one_that_is_mapped_is_used_whatever_is_named(fake_cupti: FakeCupti, tmp_path: Path) -> None:
    copy = tmp_path / "libcupti.so.12"
    copy.write_bytes(fake_cupti.path.read_bytes())
    script = f"import ctypes\nctypes.CDLL({str(copy)!r})\n" + NAMED.format(str(fake_cupti.path))
    script += "\nprint(len({line.split()[-1] for line in open('/proc/self/maps') if 'libcupti' in line}))"
    assert run(script).stdout.split() == [str(copy), "1"]


def test_a_file_that_is_no_cupti_is_refused(fake_cupti: FakeCupti) -> None:
    done = run(NAMED.format("libm.so.6"))
    assert "cuptiSubscribe" in done.stderr


def test_nothing_loads_cupti_by_itself(fake_cuda: FakeCuda) -> None:
    script = "from heliograph._native import CudaDevice\nCudaDevice()\nprint('cupti' in open('/proc/self/maps').read())"
    assert run(script).stdout.strip() == "False"


# ---- whose code loaded it ----

PRETEND = r"""
typedef int (*load)(void **, const void *);
extern "C" int pretend(load call, void **out, const void *image) {
  volatile int result = call(out, image);
  return result;
}
"""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("libcublasLt.so.13", "libcublasLt.so.13"),
        ("libtorch_cuda.so", "libtorch_cuda.so"),
        ("triton/cuda_utils.cpython-312-x86_64-linux-gnu.so", "triton"),
        ("cuda_utils.so", "triton"),
        ("libcudart.so.13", ""),
        ("libmytriton.so", "libmytriton.so"),
    ],
)
def test_the_library_is_the_one_whose_code_made_the_call(
    images: CudaImages, device: CudaDevice, app: App, tmp_path: Path, file: str, name: str
) -> None:
    source, library = tmp_path / "pretend.cpp", tmp_path / file
    source.write_text(PRETEND)
    library.parent.mkdir(exist_ok=True)
    flags = ["-O1", "-fPIC", "-shared", "-fno-optimize-sibling-calls"]
    subprocess.run([*compiler(), *flags, "-o", str(library), str(source)], check=True)
    module = ctypes.c_void_p()
    pretend = ctypes.CDLL(str(library)).pretend
    assert pretend(ctypes.c_void_p(app.entry("cuModuleLoadData")), ctypes.byref(module), A) == 0
    assert images.library(images.count() - 1) == name
    app.call("cuModuleUnload", module)


def test_our_own_loads_are_nobodys(images: CudaImages, device: CudaDevice) -> None:
    module = device.load_module(SealedImage("ours", A))
    assert images.library(images.number(module.function("twin"))) == ""


def test_the_fake_is_built_under_the_name_that_is_looked_for(fake_cupti: FakeCupti) -> None:
    assert fake_cupti.path.name == "libcupti.so.13"
    assert ROOT in fake_cupti.path.parents
