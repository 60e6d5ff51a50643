"""Merge what the jobs measured into one report. Runs in the directory of the results."""

import json
from pathlib import Path

TOTALS = {
    "lines": "lines",
    "classes": "classes",
    "functions": "functions",
    "nodes": "nodes of syntax trees",
    "bytecode": "bytes of bytecode",
}


def main() -> None:
    """Print the totals, and the modules that stand out."""
    parts = sorted(Path("artifacts").glob("*/measured.json"))
    measured = [module for part in parts for module in json.loads(part.read_text())]
    sound = [module for module in measured if "error" not in module]
    broken = [module for module in measured if "error" in module]
    print(f"Python's standard library, measured by {len(parts)} jobs\n")
    for unit, words in TOTALS.items():
        print(f"{sum(module[unit] for module in sound):>12,} {words}")
    print(f"{len(sound):>12,} modules, and {len(broken)} that are not Python (on purpose: they test the parser)")
    print(f"{sum(module['seconds'] for module in sound):>12.1f} s of parsing and compiling\n")
    for title, unit in (("most bytecode", "bytecode"), ("longest function, in lines", "longest_function")):
        print(f"{title}:")
        for module in sorted(sound, key=lambda each: each[unit], reverse=True)[:5]:
            print(f"{module[unit]:>12,} {module['module']}")


if __name__ == "__main__":
    main()
