"""Reports messages that should be read and cannot be: an error, or a warning and a gap."""

import logging
from collections.abc import Sequence

from tianzhou.errors import DataLost
from tianzhou.spark.offsets import LostRange

log = logging.getLogger(__name__)


def report_loss(lost: Sequence[LostRange | str], *, fail: bool) -> None:
    """Raise DataLost if `fail`, else log the losses."""
    if not lost:
        return
    text = "; ".join(map(str, lost))
    if fail:
        raise DataLost(f"{text}. The option failOnDataLoss=false skips what is lost")
    log.warning("lost: %s", text)
