"""The sweep's rows as a Markdown page, ``docs/results/operators.md``."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence

import torch

from protofleet.export.formats import FORMATS, Format
from protofleet.export.sweep.cases import SweepCase
from protofleet.export.sweep.prove import Proof, SweepRow

_NAMES: Mapping[Format, str] = {"onnx": "ONNX Runtime", "tflite": "LiteRT"}
_INTRODUCTION = """\
# Operators

What `protofleet export` was proved with. Every line is a small classifier around the operator, or
a whole network, exported as a user does it: compared with PyTorch in ONNX Runtime, in LiteRT and in
the device's runtime at two batch sizes (loss, outputs, every gradient), then trained for some steps
in each runtime beside PyTorch. *trains*: the losses are PyTorch's within 1e-3, and they fall.

    protofleet export --list-operators [--only PATTERN]                 # names only, at once
    protofleet export --list-operators --out docs/results/operators.md  # proves all, writes this

With `--only`, the lines of other cases stay as they are. *error* is the largest difference from
PyTorch relative to a tensor's largest entry; *s* the whole export with all of its checks; *kB* the
training program in ONNX, and all programs in TFLite, without weights; *step* a training step's time
as a multiple of PyTorch's own (batch 32, one thread, in turns in the same process).
"""


def page(rows: Iterable[SweepRow], before: str, cases: Sequence[SweepCase]) -> str:
    """The page's text.

    Args:
        rows: new results.
        before: the page as it was, whose other lines are kept; may be empty.
        cases: all there are, in the order of the table; lines of others are dropped.
    """
    lines = _lines_of(before)
    for row in rows:
        lines[row.group, row.name] = (_line(row), _remarks(row))
    parts = [_INTRODUCTION]
    for group in dict.fromkeys(case.group for case in cases):
        members = [case for case in cases if case.group == group and (group, case.name) in lines]
        if not members:
            continue
        found = [lines[group, case.name] for case in members]
        parts.append(
            "\n".join([f"## {group.capitalize()}\n", _head(members[0]), *(one for one, _ in found)])
        )
        remarks = [remark for _, several in found for remark in several]
        if remarks:
            parts.append("\n".join([f"### {group.capitalize()}: refused, and why\n", *remarks]))
    parts.append(
        f"Written with PyTorch {torch.__version__.partition('+')[0]}, {platform.machine()}."
    )
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _head(case: SweepCase) -> str:
    first = "network" if case.whole else "operator"
    columns = [first, "ONNX Runtime", "LiteRT", "error", "s", "kB ONNX", "kB TFLite"]
    if case.whole:
        columns += ["step ONNX", "step LiteRT"]
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def _line(row: SweepRow) -> str:
    proofs = [row.proofs.get(one, "not tried") for one in FORMATS]
    good = [proof for proof in proofs if isinstance(proof, Proof)]
    cells = [f"`{_cell(row.name)}`", *(_verdict(proof) for proof in proofs)]
    cells += [f"{max(proof.error for proof in good):.0e}" if good else "", f"{row.seconds:.1f}"]
    cells += [f"{p.kilobytes:.0f}" if isinstance(p, Proof) else "" for p in proofs]
    if any(proof.step is not None for proof in good):
        cells += [f"{p.step:.2f}" if isinstance(p, Proof) and p.step else "" for p in proofs]
    return f"| {' | '.join(cells)} |"


def _verdict(proof: Proof | str) -> str:
    return "trains" if isinstance(proof, Proof) else "no"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _remarks(row: SweepRow) -> list[str]:
    """Why a format cannot be used, a line each."""
    return [
        f"- `{_cell(row.name)}`, {_NAMES[one]}: {proof}"
        for one, proof in row.proofs.items()
        if isinstance(proof, str)
    ]


def _lines_of(text: str) -> dict[tuple[str, str], tuple[str, list[str]]]:
    """Lines and remarks of a page by group and name."""
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    group = ""
    for line in text.splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ")
            group = group[0].lower() + group[1:]
        elif line.startswith(("| `", "- `")):
            name = line.split("`")[1].replace("\\|", "|")
            one, remarks = found.setdefault((group, name), ("", []))
            found[group, name] = (
                (line, remarks) if line.startswith("|") else (one, [*remarks, line])
            )
    return found


def summary(rows: Sequence[SweepRow]) -> str:
    """How many of them train in each runtime, in one line."""
    counts = (
        f"{sum(isinstance(row.proofs.get(one), Proof) for row in rows)} train in {_NAMES[one]}"
        for one in FORMATS
    )
    return f"{len(rows)} cases: {', '.join(counts)}"
