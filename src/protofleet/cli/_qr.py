"""QR codes on a terminal."""

from __future__ import annotations

import sys


def show_qr(text: str) -> None:
    """Print ``text`` as a QR code that a camera reads off the screen."""
    import segno

    segno.make(text, error="l", micro=False).terminal(sys.stdout, compact=True, border=2)
