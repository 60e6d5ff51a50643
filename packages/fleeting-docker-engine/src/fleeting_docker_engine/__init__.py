"""A client of Docker's Engine API over any byte stream: a local socket, or a tunnel through a connection.

What is where::

_client     requests, their answers and errors; the version is agreed on with the daemon
_answers    pure: what a daemon answers, as values
_wire       one HTTP/1.1 connection: h11 does the protocol, a byte stream the transport
_frames     pure: separates a container's two outputs, as they come and in its log
_names      pure: what image references mean
_archives   pure: small tar archives, made here or read here
"""

from fleeting_docker_engine._answers import (
    ContainerState,
    Created,
    HostConfig,
    ImageInspected,
    Info,
    Inspected,
    Listed,
    Network,
    Stats,
    Volumes,
    Waited,
)
from fleeting_docker_engine._archives import Entry, tar_of
from fleeting_docker_engine._client import Dial, Engine, quoted
from fleeting_docker_engine._errors import EngineMalformed, EngineRefused, EngineUnreachable
from fleeting_docker_engine._frames import STDERR, STDOUT, Demultiplexer, LogReader
from fleeting_docker_engine._names import Reference, canonical, is_allowed, registry_of
from fleeting_docker_engine._wire import Body

__all__ = [
    "STDERR",
    "STDOUT",
    "Body",
    "ContainerState",
    "Created",
    "Demultiplexer",
    "Dial",
    "Engine",
    "EngineMalformed",
    "EngineRefused",
    "EngineUnreachable",
    "Entry",
    "HostConfig",
    "ImageInspected",
    "Info",
    "Inspected",
    "Listed",
    "LogReader",
    "Network",
    "Reference",
    "Stats",
    "Volumes",
    "Waited",
    "canonical",
    "is_allowed",
    "quoted",
    "registry_of",
    "tar_of",
]
