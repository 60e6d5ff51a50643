"""PowerShell as text: quoting, encoding, and the command that runs a script. Pure."""

import base64
import re

__all__ = ["powershell", "quote"]

PREFACE = (
    "$ProgressPreference = 'SilentlyContinue'; "
    "$OutputEncoding = [Console]::OutputEncoding = New-Object Text.UTF8Encoding $false\n"
)
"""What every script begins with: progress bars would come out as XML, and text in the code page of the machine."""

_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")
"""All of these end a quoted string, as `CodeGeneration.EscapeSingleQuotedStringContent` has it."""

OPTIONS = ("-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass")
PLAIN = ("-InputFormat", "None", "-OutputFormat", "Text")
"""Standard input is left to the script, which reads it through ``[Console]``; errors are text and no XML."""


def quote(text: str) -> str:
    """Write a string literal that stands for *text*; nothing in it is expanded, and it may have line breaks."""
    return "'" + _QUOTES.sub(lambda found: found[0] * 2, text) + "'"


def encode(script: str) -> str:
    """Encode a script for ``-EncodedCommand``: UTF-16 in base64, so that no shell finds anything to interpret."""
    return base64.b64encode(script.encode("utf-16-le", "surrogatepass")).decode()


def powershell(script: str, *, program: str = "powershell.exe") -> list[str]:
    """Write the command that runs a script, to be given to `Connection.run`.

    It exits with what the script's ``exit`` says, with 1 if the script ends in an error, else with 0.

    Args:
        script: Any text. Over WinRM it may have some 200,000 characters.
        program: ``pwsh.exe`` for PowerShell 7.
    """
    return [program, *OPTIONS, *PLAIN, "-EncodedCommand", encode(PREFACE + script)]
