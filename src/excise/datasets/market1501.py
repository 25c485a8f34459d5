"""Market-1501: 1,501 people and six cameras before a supermarket.

The official set has 12,936 images to train on (751 people), 3,368 queries and 15,913 gallery images (750 people and
the distractors), once the junk images are left out.
"""

from __future__ import annotations

import re

from excise.datasets.files import Folder, Source
from excise.datasets.reid import Reid, sightings_by_name

SOURCE = Source(
    "Market-1501",
    "https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html",
    "Market-1501-v15.09.15.zip (unpacked: the folders bounding_box_train with 12,936 images, bounding_box_test with "
    "19,732 and query with 3,368)",
    "market1501",
)
# person, camera, sequence, frame, detection; some copies have names that end in .jpg twice
NAME = re.compile(r"(?P<person>-1|\d{4})_c(?P<camera>[1-6])s\d_\d+_\d+(\.jpg)+")
JUNK, DISTRACTOR = -1, 0


def load_market1501(folder: Folder = None) -> Reid:
    """Train, query and gallery; junk images (-1) are left out, distractors (person 0) stay in the gallery."""
    place = SOURCE.locate(folder)
    if (place / "Market-1501-v15.09.15").is_dir():
        place = place / "Market-1501-v15.09.15"
    parts = [
        tuple(seen for seen in sightings_by_name(place / name, ".jpg", NAME, SOURCE) if seen.person != JUNK)
        for name in ("bounding_box_train", "query", "bounding_box_test")
    ]
    return Reid("Market-1501", *parts)
