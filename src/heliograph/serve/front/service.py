"""What answers requests: admits them, holds early ones, makes rows of plans, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import msgspec

from heliograph.errors import HeliographError, TemplateError, UsageError
from heliograph.runtime.text import Text
from heliograph.serve.frames import MAX_PROMPT, MAX_ROWS, Ended, Launched, Load, Loaded
from heliograph.serve.front.face import Face
from heliograph.serve.front.generation import Generation
from heliograph.serve.front.journal import End, Journal, Work
from heliograph.serve.front.metrics import Metrics, Timer
from heliograph.serve.front.openai_request import Model, Plan, check_length, work_of
from heliograph.serve.front.refusal import invalid, unavailable
from heliograph.serve.front.rounds import Rounds
from heliograph.serve.front.start import Answered, Report
from heliograph.serve.front.supervisor import SERVING, Supervisor, Worker
from heliograph.serve.front.text_stream import TextStream
from heliograph.serve.limits import Limits


class World(msgspec.Struct, frozen=True):
    """What is outside of the process, so that tests can put something else in its place."""

    launch: Callable[[], Worker]  # that has been told its Start
    clock: Callable[[], float]  # seconds that only rise
    wall: Callable[[], float]  # seconds since 1970
    seed: Callable[[], int]  # 63 random bits
    name: Callable[[], str]  # an id that no other request has


class Service:
    """One event loop. The supervisor's observer, too."""

    def __init__(
        self, face: Awaitable[Face], world: World, report: Report, limits: Limits, began: float, *, alias: str = "",
        strict: bool = False, log_requests: bool = False,
    ) -> None:  # fmt: skip
        self.world, self.limits, self.strict = world, limits, strict
        self.journal = Journal()
        self.rounds = Rounds()
        self.metrics = Metrics()
        self.draining = False
        self._face = asyncio.ensure_future(face)
        self.supervisor = Supervisor(world.launch, self._digest(), self.journal, self, limits)
        self._report, self._alias, self._log_requests = report, alias, log_requests
        self._loaded: Loaded | None = None
        self._began = began
        self._created = int(world.wall())
        self._requests = 0
        self._held = 0  # bytes of their bodies
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- requests --------------------------------------------------------------------------------------------------
    @property
    def status(self) -> str:
        """ "ready", or why not."""
        return "draining" if self.draining else self.supervisor.state.value

    @contextlib.contextmanager
    def admit(self) -> Iterator[Callable[[int], None]]:
        """Counts a request while it is answered, and the bytes of its body as what it gives is told of them. Refusal
        if there are too many of either, or the server is ending."""
        if self.draining:
            raise unavailable("the server is ending")
        if self._requests >= self.limits.waiting:
            raise unavailable(f"{self._requests} requests wait or run already")
        self._requests += 1
        self._idle.clear()
        held = 0

        def hold(more: int) -> None:
            nonlocal held
            if self._held + more > self.limits.bodies:
                raise unavailable(f"the requests that wait or run hold {self._held} bytes already")
            self._held += more
            held += more

        try:
            yield hold
        finally:
            self._requests -= 1
            self._held -= held
            if not self._requests:
                self._idle.set()

    async def hold(self) -> Model:
        """The model, once it is loaded; early requests wait here. Refusal if it is not, or not in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.hold):
                await self.supervisor.settled.wait()
        if self.supervisor.state not in SERVING or self._loaded is None:
            raise unavailable(f"the model is {self.supervisor.state.value}")
        face, loaded = await asyncio.shield(self._face), self._loaded
        facts = face.facts
        return Model(
            name=self._alias or face.name, digest=face.digest, created=self._created,
            context=min(facts.context, loaded.blocks * loaded.block_tokens, MAX_PROMPT), vocabulary=facts.vocabulary,
            eos=facts.eos, concurrency=min(loaded.concurrency, MAX_ROWS), biases=loaded.biases,
        )  # fmt: skip

    async def encode(self, plan: Plan) -> list[array[int]]:
        """The tokens of a plan's prompts, in a thread: neither templates nor tokenizers may stop the others. Refusal
        for a text that is too long for the model, before it is tokens: nothing ends that work once it has begun."""
        given = [prompt for prompt in plan.prompts if not isinstance(prompt, str)]
        if given:
            return given
        face = await asyncio.shield(self._face)
        try:
            async with asyncio.timeout(self.limits.encode):
                return await asyncio.to_thread(_encode, face.text, plan, min(face.facts.context, MAX_PROMPT))
        except TimeoutError:
            raise unavailable(f"the prompt took longer than {self.limits.encode:.0f} s to become tokens") from None
        except (UsageError, TemplateError) as error:
            raise invalid(f"{error.doing}: {error.found}", "messages") from error

    async def text(self) -> Text:
        return (await asyncio.shield(self._face)).text  # a client that leaves must not end it for the others

    async def decode(self, tokens: Sequence[int], model: Model) -> str:
        """The text of tokens, control tokens shown."""
        if any(not 0 <= token < model.vocabulary for token in tokens):
            raise invalid(f"a token outside of the vocabulary of {model.vocabulary}", "tokens")
        text = await self.text()
        return await asyncio.to_thread(lambda: text.decode(tokens, controls=True))

    def generate(self, plan: Plan, prompts: Sequence[Sequence[int]], model: Model, text: Text) -> Generation:
        """Starts to generate. Refusal if the plan does not fit the model, or the worker has too much to do;
        :meth:`cancel` it when nobody waits."""
        generation = Generation(Timer(self.metrics, self.world.clock))
        works = work_of(plan, prompts, model, self.world.seed())
        if self.supervisor.full:
            raise unavailable("the worker has not taken what others asked")
        if len(self.journal) + sum(len(work.seeds) for work in works) > self.limits.rows:
            raise unavailable(f"{len(self.journal)} rows wait or run already")
        generation.prompt_tokens = sum(len(prompt) for prompt in prompts)
        self.metrics.prompt_tokens += generation.prompt_tokens
        for work in works:
            rows = self.journal.open(work, partial(_stream_of, text, plan, work), generation.changed)
            generation.rows += rows
            self.supervisor.submit(rows)
        return generation

    def cancel(self, generation: Generation) -> None:
        """Ends what is still under way of it, at once."""
        if rows := generation.under_way:
            self.supervisor.cancel(rows)

    # ---- the end ---------------------------------------------------------------------------------------------------
    async def drain(self, seconds: float) -> None:
        """Refuses new requests, lets running ones end for a while, then cancels them."""
        self.draining = True
        self._report.draining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self.journal.finish_all(End.FAILED, "the server is ending")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.stop):
                await self._idle.wait()

    # ---- what the supervisor tells ---------------------------------------------------------------------------------
    def phase(self, name: str, nanoseconds: int) -> None:
        self.metrics.phases[name] = nanoseconds
        self._report.phase(name, nanoseconds)

    def loaded(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.metrics.load = Load(0, 0, loaded.blocks)

    def ready(self) -> None:
        self._report.ready(round((self.world.clock() - self._began) * 1e9), self._face.result().numerics)

    def launched(self, launched: Launched, kept: int) -> None:
        self.rounds.count(launched, kept)
        self.metrics.launched(launched)

    def ended(self, ended: Ended) -> None:
        self.metrics.load = ended.load

    def restarting(self, error: HeliographError) -> None:
        self.metrics.restarts += 1
        self.metrics.load = Load(0, 0, 0)
        self._began = self.world.clock()
        self._report.restarting(error)

    # ---- what the edge tells ---------------------------------------------------------------------------------------
    def answered(
        self, request_id: str, method: str, path: str, status: int, began: float, made: Generation | None
    ) -> None:
        """The answer of a request has ended; ``made``: what it generated."""
        if not self._log_requests:
            return
        told = Answered(request_id, method, path, status, round((self.world.clock() - began) * 1e9))
        if made is not None:
            told = msgspec.structs.replace(
                told,
                prompt_tokens=made.prompt_tokens,
                generated_tokens=sum(len(row.tokens) for row in made.rows),
                first_token=round((made.timer.first or 0) * 1e9),
                ends=tuple(row.end.value for row in made.rows if row.end is not None),
            )
        self._report.answered(told)

    async def _digest(self) -> str:
        face = await self._face
        self.phase("front/text", face.nanoseconds)
        return face.digest


def _stream_of(text: Text, plan: Plan, work: Work) -> TextStream:
    decoder = text.decoder(after=() if plan.messages else work.prompt)
    return TextStream(decoder, work.stop_strings, work.least)


def _encode(text: Text, plan: Plan, context: int) -> list[array[int]]:
    def check(whole: str) -> None:
        if len(whole) >= context:  # else there is no telling
            check_length(plan, text.fewest(whole), context, "at least ")

    if plan.messages:
        return [array("i", text.encode_chat(plan.messages, check=check))]
    texts = [prompt for prompt in plan.prompts if isinstance(prompt, str)]
    for whole in texts:
        check(whole)
    return [array("i", _encode_text(text, whole)) for whole in texts]


def _encode_text(text: Text, whole: str) -> list[int]:
    """An empty text is the beginning of one, if the model has a token for that."""
    return text.encode(whole) or ([text.bos] if text.bos >= 0 else [])
