"""Parse, byte-compile and measure this job's share of the standard library's modules."""

import ast
import json
import os
import sysconfig
import time
import tokenize
import warnings
from pathlib import Path
from types import CodeType

LIBRARY = Path(sysconfig.get_path("stdlib"))
NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}


def modules() -> list[Path]:
    """All source files of the library, in an order that every job agrees on."""
    found = (path for path in LIBRARY.rglob("*.py") if NOT_THE_LIBRARY.isdisjoint(path.parts))
    return sorted(found)


def code_size(code: CodeType) -> int:
    """Bytes of bytecode, those of nested functions and classes included."""
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return len(code.co_code) + sum(map(code_size, nested))


def measure(path: Path) -> dict[str, object]:
    """Measure one module; one that cannot be parsed says why."""
    name = str(path.relative_to(LIBRARY))
    start = time.perf_counter()
    try:
        with tokenize.open(path) as file:
            source = file.read()
        tree = ast.parse(source)
        code = compile(tree, name, "exec")
    except (SyntaxError, UnicodeDecodeError) as error:
        return {"module": name, "error": f"{type(error).__name__}: {error}"}
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        "module": name,
        "lines": source.count("\n"),
        "nodes": len(nodes),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "functions": len(functions),
        "longest_function": max(((node.end_lineno or 0) - node.lineno + 1 for node in functions), default=0),
        "bytecode": code_size(code),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Measure every module whose number is this job's, modulo the number of jobs."""
    warnings.simplefilter("ignore")  # the library's own tests warn of what they test
    index = int(os.environ.get("TASKSCALER_JOB_INDEX", "0"))
    count = int(os.environ.get("TASKSCALER_JOB_COUNT", "1"))
    measured = [measure(path) for path in modules()[index::count]]
    Path("measured.json").write_text(json.dumps(measured))
    print(f"measured {len(measured)} modules")


if __name__ == "__main__":
    main()
