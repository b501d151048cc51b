"""The table of docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence

from protofleet.chaos.federation import WINDOW_BYTES
from protofleet.chaos.run import FaultResult, Options

_HEAD = "| fault | injected | rounds completed | lost | counted twice | bytes resent | same bits |"


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
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in (result.row for result in results):
        same = "yes" if row.same_bits else "**no**"
        lines.append(
            f"| `{row.fault}` | {row.injected:,} | {row.rounds_completed:,} | {row.lost} "
            f"| {row.counted_twice} | {row.bytes_resent:,} | {same} |"
        )
    most = max((one.most_resent for found in results for one in found.outcomes), default=0)
    resent = (
        f"Most that one transfer sent again between two faults: {most:,} bytes; a window has "
        f"{WINDOW_BYTES:,}."
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
