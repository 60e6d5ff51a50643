"""What a group says of itself when it is opened."""

from fleeting._protocols import GivesNotice, MarksOwner, Suspends, Withdraws
from fleeting._types import SUPPORTED_INTERFACE_VERSIONS, Capability
from fleeting.testing._harness import Harness, Violation


async def check_init_reports_what_the_group_is(harness: Harness) -> None:
    """`init` names the cloud resource and a supported interface version."""
    async with harness.opened() as probe:
        info = probe.info
    if not info.identity:
        raise Violation("identity is the cloud resource itself", f"identity {info.identity!r}")
    if info.interface_version not in SUPPORTED_INTERFACE_VERSIONS:
        versions = " or ".join(map(str, SUPPORTED_INTERFACE_VERSIONS))
        raise Violation(f"the interface version is {versions}", f"interface_version {info.interface_version!r}")
    if info.max_size is not None and info.max_size < 0:
        raise Violation("max_size is the cloud's own ceiling, or None", f"max_size {info.max_size!r}")


METHODS = {
    Capability.WITHDRAW: Withdraws,
    Capability.SUSPEND_RESUME: Suspends,
    Capability.NOTICES: GivesNotice,
    Capability.OWNER_MARK: MarksOwner,
}


async def check_claimed_capabilities_have_their_methods(harness: Harness) -> None:
    """A group that claims a capability has its methods."""
    async with harness.opened() as probe:
        for capability in sorted(METHODS.keys() & probe.info.capabilities, key=lambda each: each.name):
            methods = METHODS[capability]
            probes = capability is Capability.NOTICES and probe.info.notice_probe is not None
            if not probes and not isinstance(probe.group, methods):
                clause = f"a group that claims {capability.name} has the methods of {methods.__name__}"
                raise Violation(clause, f"{type(probe.group).__name__} lacks them")


async def check_identity_is_the_resource(harness: Harness) -> None:
    """A second object for the same resource has the same identity; the manager's lock is taken on it."""
    async with harness.opened() as one:
        pass
    async with harness.opened() as other:
        pass
    if one.info.identity != other.info.identity:
        seen = f"{one.info.identity!r}, then {other.info.identity!r}"
        raise Violation("identity is the cloud resource itself, the same each time it is opened", seen)
