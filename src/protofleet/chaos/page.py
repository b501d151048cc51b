"""The table of docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence

from protofleet.chaos.federation import WINDOW_BYTES
from protofleet.chaos.run import FaultResult, Options

_HEAD = (
    "| fault | injected | rounds completed | lost | counted twice | bytes resent "
    "| most of a transfer | same bits |"
)


def page(results: Sequence[FaultResult], options: Options) -> str:
    """Markdown: what was run, a line for each fault, what each fault is."""
    setting = (
        f"Seed {options.seed}; {', '.join(options.strategies)}; {options.rounds} rounds of each "
        f"federation, {options.injections} faults a round."
    )
    lines = [
        setting,
        "",
        _HEAD,
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for result in results:
        row, most = result.row, max(one.most_resent for one in result.outcomes)
        same = "yes" if row.same_bits else "**no**"
        lines.append(
            f"| `{row.fault}` | {row.injected:,} | {row.rounds_completed:,} | {row.lost} "
            f"| {row.counted_twice} | {row.bytes_resent:,} | {most:,} | {same} |"
        )
    resent = (
        "*Most of a transfer*: bytes that one transfer sent again between two faults of its "
        f"federation; a window has {WINDOW_BYTES:,}."
    )
    lines += [
        "",
        resent,
        "",
        "| fault | what is done |",
        "|---|---|",
        *(f"| `{found.fault.name}` | {found.fault.what} |" for found in results),
        "",
    ]
    return "\n".join(lines)
