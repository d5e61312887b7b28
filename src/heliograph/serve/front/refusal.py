"""Why a request is not answered, in no dialect: ``openai_answer`` and the like write it down."""

from __future__ import annotations

MAX_MESSAGE = 200  # characters, so that a message never echoes more of a request than that
RETRY_SECONDS = 1.0  # what overloaded and restarting servers ask for


class Refusal(Exception):
    """``param`` names the field at fault; ``retry`` is the time after which the same request may succeed."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        retry: float | None = None,
    ) -> None:  # fmt: skip
        self.status = status
        self.message = message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
        self.param = None if param is None else param[:MAX_MESSAGE]
        self.code = code
        self.retry = retry
        super().__init__(self.message)

    @property
    def headers(self) -> dict[str, str]:
        """What both official clients obey: when to try again, or that it would be no use."""
        if self.status == 408:  # what else the client has to say is not waited for
            return {"connection": "close"}
        if self.retry is not None:
            return {"retry-after": f"{max(1, round(self.retry))}", "retry-after-ms": f"{round(self.retry * 1000)}"}
        return {"x-should-retry": "false"}


def invalid(message: str, param: str | None, code: str | None = None) -> Refusal:
    """The request itself is at fault."""
    return Refusal(400, message, param=param, code=code)


def unavailable(message: str) -> Refusal:
    """Not now: starting, busy, restarting or ending."""
    return Refusal(503, message, code="unavailable", retry=RETRY_SECONDS)


def fault() -> Refusal:
    """An error that nobody foresaw. What it says is for the log."""
    return Refusal(500, "the server is at fault; see its log", code="internal")
