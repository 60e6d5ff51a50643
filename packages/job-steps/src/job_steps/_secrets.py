"""Texts that nobody is to see, masked wherever they come up: in whole texts, and in a stream that is cut anywhere."""

from attrs import define, field

from job_steps._errors import StepFailed
from job_steps._values import MASKED

SHORTEST = 8
"""Characters of a secret that is masked inside of something else; shorter ones would hide half of a log. Source: GitLab
accepts no masked variable that is shorter."""

LONGEST = 4096
"""Bytes of a piece of a secret that is looked for: of longer lines, each such piece."""

MOST = 2000
"""Such pieces of all secrets of a run: a log is searched for each of them."""

FEW = 200
"""Such pieces that are looked for one by one: of more, first those whose beginnings are there."""

_MASKED = MASKED.encode()


@define
class Secrets:
    """A set of secrets, to which some come while steps run. Of a secret with several lines, each line is one."""

    _pieces: set[bytes] = field(init=False, factory=set, repr=False)
    _sorted: list[bytes] = field(init=False, factory=list, repr=False)
    _by_head: dict[bytes, list[bytes]] = field(init=False, factory=dict, repr=False)
    """By their first bytes, as many as the shortest one has."""

    def add(self, secret: str) -> None:
        """Mask this text from now on, as far as it is long enough.

        Raises:
            StepFailed: There are too many; those that there is room for are masked.
        """
        for line in secret.splitlines():
            if len(line) < SHORTEST:
                continue
            whole = line.encode("utf-8", "surrogatepass")
            number = -(-len(whole) // LONGEST)
            size = -(-len(whole) // number)  # all about as long: a short rest would be masked wherever it is
            for start in range(0, len(whole), size):
                self._pieces.add(whole[start : start + size])
                if len(self._pieces) > MOST:
                    raise StepFailed(
                        f"more than {MOST} lines that are to be masked, of all sensitive values of this run"
                    )

    def texts(self) -> list[str]:
        """All that is masked, in pieces, for another set."""
        return [piece.decode("utf-8", "replace") for piece in self._longest_first()]

    def scrub(self, text: str) -> str:
        """Mask all secrets in a text."""
        if not self._pieces:
            return text
        return self.mask(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def _longest_first(self) -> list[bytes]:
        if len(self._pieces) != len(self._sorted):
            self._sorted = sorted(self._pieces, key=_by_length)
            self._by_head = {}
            for piece in self._sorted:
                self._by_head.setdefault(piece[:SHORTEST], []).append(piece)
        return self._sorted

    def mask(self, data: bytes) -> bytes:
        """Mask all secrets in bytes, the longer ones first."""
        for piece in self._candidates(data):
            data = data.replace(piece, _MASKED)
        return data

    def _candidates(self, data: bytes) -> list[bytes]:
        """All that can be in there, the longer ones first: to look for each takes long when there are many."""
        pieces = self._longest_first()
        if len(pieces) <= FEW:
            return pieces
        heads = {head for at in range(len(data) - SHORTEST + 1) if (head := data[at : at + SHORTEST]) in self._by_head}
        return sorted((piece for head in heads for piece in self._by_head[head]), key=_by_length)

    def unfinished(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret."""
        longest = 0
        for piece in self._longest_first():
            tail = data[-(len(piece) - 1) :] if len(piece) > 1 else b""
            start = tail.find(piece[:1])
            while 0 <= start < len(tail) - longest:
                if piece.startswith(tail[start:]):
                    longest = len(tail) - start
                start = tail.find(piece[:1], start + 1)
        return longest


@define
class Masked:
    """A stream of bytes in which secrets are masked, wherever it is cut."""

    secrets: Secrets
    _held: bytes = field(init=False, default=b"", repr=False)

    def feed(self, data: bytes) -> bytes:
        """Take what comes, and return what may be shown of it now."""
        data = self.secrets.mask(self._held + data)
        held = self.secrets.unfinished(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def flush(self) -> bytes:
        """Return what was held back: nothing follows that would make a secret of it."""
        held, self._held = self._held, b""
        return held


def _by_length(piece: bytes) -> tuple[int, bytes]:
    return -len(piece), piece
