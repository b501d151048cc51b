"""Weights in PyTorch's pickled format: recognised, refused, and the line that converts them."""

from __future__ import annotations

import shlex
from pathlib import Path

from protofleet.errors import InputError

_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl"})
_MAGIC = (b"PK\x03\x04", b"\x80\x02\x8a\n")
"""Of a zip archive, which ``torch.save`` writes, and of the pickle that it wrote before; neither is
the length of a header, with which safetensors begin."""


def refuse_pickled(path: Path, what: str) -> None:
    """Raise InputError if an existing file is of ``torch.save``; ``what`` begins the message."""
    with path.open("rb") as file:
        if path.suffix not in _SUFFIXES and not file.read(4).startswith(_MAGIC):
            return
    raise InputError(
        f"{what} '{path}': is PyTorch's pickled format, which may run code when it is read; "
        f"expected safetensors. This line converts it: {conversion(path)}"
    )


def conversion(path: Path) -> str:
    """The command that writes the tensors of a ``torch.save`` file as safetensors.

    It runs no code of the file; tensors that share memory are written apart.
    """
    target = path.with_suffix(".safetensors")
    if target == path:
        target = path.with_suffix(".converted.safetensors")
    code = (
        "import torch, safetensors.torch as s; "
        f"t = torch.load(open({str(path)!r}, 'rb'), map_location='cpu', weights_only=True); "
        "t = t.get('state_dict', t); "
        "s.save_file({k: v.clone().contiguous() for k, v in t.items() if torch.is_tensor(v)}, "
        f"{str(target)!r})"
    )
    plain = not set(code) & set('"$`\\!')
    return f'python -c "{code}"' if plain else f"python -c {shlex.quote(code)}"
