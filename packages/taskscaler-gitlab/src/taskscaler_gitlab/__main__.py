"""``python -m taskscaler_gitlab`` is the command ``taskscaler-gitlab``."""

from taskscaler_gitlab.cli import main

if __name__ == "__main__":
    main(prog_name="taskscaler-gitlab")
