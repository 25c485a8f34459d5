"""For the site: the plots of results/, which docs/results.md shows, lie outside of docs/."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def on_post_build(config: Any) -> None:
    """Put every plot where the page looks for it."""
    root = Path(config.config_file_path).parent
    for plot in root.glob("results/*/plot.png"):
        place = Path(config.site_dir) / plot.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(plot, place)
