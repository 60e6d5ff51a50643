"""Secrets are for the connector, and for nobody who reads along."""

from collections.abc import Collection, Mapping, Sequence

from attrs import evolve

from fleeting._types import ConnectInfo
from fleeting.testing._harness import Answer, Call, Harness, Probe, Trouble, Violation, answer_of, answers_at_once
from fleeting.testing._overhearing import overhearing, spellings, words_of

QUIET = (Trouble.SLOW, Trouble.BROKEN_PAGE, Trouble.PAGE_LOOP, Trouble.EMPTY_PAGE, Trouble.SHIFTED_PAGE)
"""Troubles in which calls say nothing that they do not say in another."""


async def check_connect_info_hides_secrets(harness: Harness) -> None:
    """The `repr` of connection details shows no secrets, because it ends up in logs."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        info = await probe.group.connect_info(instance)
        secrets = {"password": info.password, "key": info.key}
        if shown := [name for name, secret in secrets.items() if secret and secret in repr(info)]:
            raise Violation("secrets do not appear in the repr of ConnectInfo", f"its repr shows the {shown[0]}")


async def check_secrets_are_shown_to_nobody(harness: Harness) -> None:
    """No `repr`, log, error, warning or standard output shows a secret, even if the cloud itself repeats it."""
    with overhearing() as heard:
        async with harness.opened() as probe:
            (instance,) = await probe.grow(1)
            info = await probe.group.connect_info(instance)
            secrets = [*harness.secrets, *(secret for secret in (info.password, info.key) if secret)]
            if not secrets:
                raise harness.lack("secrets", "secrets, the secret values of the group's settings")
            shown: dict[str, Sequence[str]] = {"a repr": await _shown(probe, info)}
            shown |= await _provoked(probe, info)
    for where, words in {**shown, **heard.words()}.items():
        _look_for(secrets, where, words)


def _look_for(secrets: Collection[str], where: str, words: Sequence[str]) -> None:
    """Raise if one of them is there, however it is spelled."""
    for written, secret in spellings(secrets):
        for word in words:
            if written and written in word:
                at = word.index(written)
                around = (
                    _without(secrets, word[max(0, at - 60) : at])
                    + "***"
                    + _without(secrets, word[at + len(written) :][:60])
                )
                kind = "" if written == secret else ", in another spelling"
                raise Violation(
                    "secrets appear nowhere that others may read", f"{where} contains one{kind}: …{around}…"
                )


def _without(secrets: Collection[str], word: str) -> str:
    """The word, with what may be another secret left out."""
    for secret in secrets:
        word = word.replace(secret, "***")
    return word


async def _shown(probe: Probe, info: ConnectInfo) -> Sequence[str]:
    """How the group, what it holds of its own and what it returns are written."""
    values = [probe.group, probe.harness.make(), *_own(probe.group), probe.info, info, await probe.group.update()]
    return [word for value in values for word in (repr(value), str(value))]


def _own(group: object) -> Sequence[object]:
    """What the group holds that is of its own package: its settings, its client."""
    packages = {kind.__module__.partition(".")[0] for kind in type(group).__mro__} - {"builtins", "fleeting"}
    held = getattr(group, "__dict__", {}).values()
    return [value for value in held if type(value).__module__.partition(".")[0] in packages]


async def _provoked(probe: Probe, info: ConnectInfo) -> Mapping[str, Sequence[str]]:
    """Make each call, for an instance that is not there and in every trouble, and take down what it answers."""
    harness = probe.harness
    said = {f"{name} of an unknown instance": _words_in(await answer_of(call())) for name, call in _unknown(probe)}
    for kind in (kind for kind in harness.troubles if kind not in QUIET):
        calls = probe.calls(info.id)
        calls = {name: call for name, call in calls.items() if name != "decrease" or kind is not Trouble.LATE_ANSWER}
        answers = await answers_at_once(calls, harness.patience, harness.trouble(kind))
        for name, answer in answers.items():
            said[f"{name}, while the cloud {kind.value},"] = [] if answer is None else _words_in(answer)
    await probe.rest(harness.settle)
    return said


def _unknown(probe: Probe) -> Sequence[tuple[str, Call]]:
    """The calls about one instance, made about one that is not there."""
    reads = probe.reads(probe.harness.unknown_id)
    return [(name, call) for name, call in reads.items() if name != "update"]


def _words_in(answer: Answer) -> list[str]:
    """What an error says, or how that is written that was returned; not connection details, which are secret."""
    if answer.error is not None:
        return words_of(answer.error)
    value = evolve(answer.value, password=None, key=None) if isinstance(answer.value, ConnectInfo) else answer.value
    return [repr(answer.value), str(value)]
