from __future__ import annotations

from pathlib import Path

import pytest
from attacks.hostile import Forge


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    """A good bundle to spoil; it lies two folders deep so that a traversal stays in the test's."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    return Forge(folder)
