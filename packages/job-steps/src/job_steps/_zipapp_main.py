"""What Python runs of the agent's zipapp first. Every Python can parse it: one that is too old says so, and ends.

The first time, the modules are laid out beside the zipapp and compiled, because Python compiles what it imports from a
zipapp again each time; where that cannot be done, it imports from the zipapp.
"""

import os
import sys

OLDEST = (3, 10)
"""What the packages in the zipapp need."""


def main():
    # type: () -> int
    """Check the version, find the modules, go on there."""
    if sys.version_info < OLDEST:
        found = ".".join(str(part) for part in sys.version_info[:3])
        needed = "%d.%d" % OLDEST
        sys.stderr.write("agent.pyz: Python %s or later is needed; %s is %s\n" % (needed, sys.executable, found))
        return 3
    zipapp = os.path.dirname(os.path.abspath(__file__))
    modules = "%s.%s" % (zipapp, sys.implementation.cache_tag)
    try:
        lay_out(zipapp, modules)
    except OSError:
        pass
    else:
        sys.path[0] = modules
    try:  # noqa: SIM105  (no older Python has contextlib.suppress)
        os.utime(zipapp, None)  # a version that nobody has started for long is removed
    except OSError:
        pass
    from job_steps._agent._main import main as agent

    return agent(sys.argv[1:], zipapp)


def lay_out(zipapp, modules):
    # type: (str, str) -> None
    """Lay the modules out, unless somebody has; a directory that is there is whole."""
    if os.path.isdir(modules):
        return
    if os.path.lexists(modules):
        raise OSError(modules + " is in the way")
    import compileall
    import shutil
    import tempfile
    import zipfile

    beside = tempfile.mkdtemp(prefix=".modules-", dir=os.path.dirname(modules))
    try:
        with zipfile.ZipFile(zipapp) as file:
            for name in file.namelist():
                path = os.path.join(beside, name)
                if not os.path.isdir(os.path.dirname(path)):
                    os.makedirs(os.path.dirname(path))
                with open(path, "wb") as module:
                    module.write(file.read(name))
        compileall.compile_dir(beside, quiet=2)
        os.chmod(beside, 0o700)
        try:
            os.rename(beside, modules)
        except OSError:
            if not os.path.isdir(modules):
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
