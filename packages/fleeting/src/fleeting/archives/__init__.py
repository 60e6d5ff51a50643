"""Tar archives on the manager's side: packs what an instance needs, unpacks what comes from one.

What comes from an instance is not trusted; `unpack` says what is taken. How the parts lie on each other:

    _merging     what was unpacked into a directory that has something in it
    _unpacking   an archive into an empty directory           _packing   files as an archive, made as it is read
    _paths       pure: where members belong, where links lead
    _reader      pure: bytes in, members and pieces of their content out
    _sparse  _numbers  _members
"""

from fleeting.archives._members import (
    BLOCK,
    CHUNK,
    END,
    LONGEST_NAME,
    ArchiveRefused,
    ArchiveTooLarge,
    Kind,
    Member,
    Piece,
    shown,
)
from fleeting.archives._merging import merge
from fleeting.archives._packing import Packed, header, pack
from fleeting.archives._reader import Reader
from fleeting.archives._unpacking import unpack

__all__ = [
    "BLOCK",
    "CHUNK",
    "END",
    "LONGEST_NAME",
    "ArchiveRefused",
    "ArchiveTooLarge",
    "Kind",
    "Member",
    "Packed",
    "Piece",
    "Reader",
    "header",
    "merge",
    "pack",
    "shown",
    "unpack",
]
