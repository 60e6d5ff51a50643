"""Secrets are for the connector, and for nobody who reads along."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from fleeting._types import ConnectInfo
from fleeting.testing._harness import Answer, Harness, Probe, Trouble, Violation, answer_of, new_intent

TALKATIVE = (
    Trouble.ERROR,
    Trouble.GARBAGE,
    Trouble.AUTH,
    Trouble.RATE_LIMIT,
    Trouble.STOCK_OUT,
    Trouble.QUOTA,
    Trouble.LOST_ANSWER,
)
"""Troubles of which a cloud says more than it should, and a plugin repeats it."""


class _Ear(logging.Handler):
    """Hears whatever is logged, with all that stands beside the message."""

    def __init__(self) -> None:
        super().__init__(level=logging.NOTSET)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take it down."""
        self.heard.append(f"{record.getMessage()} {vars(record)!r}")
        if record.exc_info and record.exc_info[1] is not None:
            self.heard += _words_of(record.exc_info[1])


async def check_connect_info_hides_secrets(harness: Harness) -> None:
    """Nothing secret is in the `repr` of connection details, which find their way into logs."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        info = await probe.group.connect_info(instance)
        secrets = {"password": info.password, "key": info.key}
        if shown := [name for name, secret in secrets.items() if secret and secret in repr(info)]:
            raise Violation("secrets stay out of the repr of ConnectInfo", f"its repr shows the {shown[0]}")


async def check_secrets_are_told_nobody(harness: Harness) -> None:
    """No secret is in a `repr`, a log or an error, even if the cloud itself repeats it."""
    with _listening() as ear:
        async with harness.opened() as probe:
            (instance,) = await probe.grow(1)
            info = await probe.group.connect_info(instance)
            secrets = [*harness.secrets, *(secret for secret in (info.password, info.key) if secret)]
            if not secrets:
                raise harness.lack("secrets", "secrets, the secret values of the group's settings")
            told = {"a repr": [repr(probe.group), repr(probe.info), repr(info), repr(await probe.group.update())]}
            told["an answer"] = [word for answer in await _provoked(probe, info) for word in _words_in(answer)]
    for where, words in {**told, "a log": ear.heard}.items():
        if showing := [word for word in words if any(secret in word for secret in secrets)]:
            seen = f"{where} shows one: {_hidden(showing[0], secrets)}"
            raise Violation("secrets stay out of reprs, logs and errors", seen)


async def _provoked(probe: Probe, info: ConnectInfo) -> list[Answer]:
    """Make the group say what it says when things go wrong, as far as they can be made to."""
    unknown = probe.harness.unknown_id
    answers = [await answer_of(probe.group.connect_info(unknown)), await answer_of(probe.group.heartbeat(unknown))]
    for kind in TALKATIVE:
        if kind in probe.harness.troubles:
            async with probe.harness.trouble(kind):
                answers.append(await answer_of(probe.group.update()))
                answers.append(await answer_of(probe.group.increase(1, intent=new_intent())))
                answers.append(await answer_of(probe.group.heartbeat(info.id)))
                answers.append(await answer_of(probe.group.connect_info(info.id)))
    await probe.rest(probe.harness.settle)
    return answers


@contextmanager
def _listening() -> Iterator[_Ear]:
    """Hear every log there is."""
    root, ear = logging.getLogger(), _Ear()
    level = root.level
    root.addHandler(ear)
    root.setLevel(logging.DEBUG)
    try:
        yield ear
    finally:
        root.setLevel(level)
        root.removeHandler(ear)


def _words_in(answer: Answer) -> list[str]:
    """What an error says, or the `repr` of what was returned."""
    return _words_of(answer.error) if answer.error is not None else [repr(answer.value)]


def _words_of(error: BaseException | None) -> list[str]:
    """What it says, and those that led to it; a traceback shows them all."""
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return [word for each in errors for word in (str(each), repr(each), *getattr(each, "__notes__", ()))]


def _hidden(word: str, secrets: Collection[str]) -> str:
    """What stands around the first secret."""
    for secret in secrets:
        word = word.replace(secret, "***")
    at = word.index("***")
    return f"…{word[max(0, at - 60) : at + 60]}…"
