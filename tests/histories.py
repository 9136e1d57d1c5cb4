"""Samples of the past in a catalog, for tests of what is shown of it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.catalog.engine import Catalog
from service.catalog.tables import SampleRow
from service.series import HOUR_MS, MINUTE_MS, Figures, FigureSample, pack, pack_base, sample_of


def remember(catalog: Catalog, figures: Mapping[int, Figures]) -> None:
    """What was sampled when, exactly at the begin of a period; nothing else was before the last of them."""

    def write(s: Session) -> None:
        s.execute(delete(SampleRow).where(SampleRow.period_ms <= max(figures)))
        base: FigureSample | None = None
        for at_ms, found in sorted(figures.items()):
            sample = sample_of(at_ms, found)
            if base is None or base.layout.owners != sample.layout.owners or base.at_ms // HOUR_MS != at_ms // HOUR_MS:
                base = sample
            content = pack_base(sample) if base is sample else pack(sample, base)
            is_coarse = at_ms % MINUTE_MS == 0
            row = {"period_ms": at_ms, "at_ms": at_ms, "base_ms": base.at_ms, "is_coarse": is_coarse}
            s.add(SampleRow(**row, content=content))

    catalog.write(write)
