"""The Python interface's reference: what ``protofleet.__all__`` lists."""

from __future__ import annotations

import protofleet

_INTRODUCTION = """# Python names

What `import protofleet` gives, from the docstrings; every other name may change. How they go
together: [the Python interface](api.md).
"""


def names_page() -> str:
    """Markdown: a directive for each name, for mkdocstrings to fill from the docstring."""
    directives = [f"::: {_home(name)}\n" for name in protofleet.__all__ if name != "__version__"]
    return "\n".join([_INTRODUCTION, *directives])


def _home(name: str) -> str:
    """Where it is written: names of the package itself are loaded when they are asked for."""
    value = getattr(protofleet, name)
    return f"{value.__module__}.{value.__qualname__}"
