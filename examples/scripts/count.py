"""What runs on the instances; sent along by words.py."""

import ast
from collections import Counter


def words(source: str) -> "dict[str, int]":
    """Count the words in the documentation strings of a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = (ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return Counter(word.lower() for text in texts for word in text.split() if word.isalpha())
