"""The radii of published networks on the page: those of the committed rows."""

import numpy as np

from bronet.web.served import PARTS, published_radii
from lab.published_radii import published


def test_the_page_draws_the_committed_rows() -> None:
    for weights, radii in published().items():
        known = published_radii(weights)
        assert known is not None
        assert np.array_equal(known, radii / PARTS)
