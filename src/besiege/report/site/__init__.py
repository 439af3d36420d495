"""The site of a run with several models: static pages, readable without scripts and network."""

from __future__ import annotations

from besiege.report.site.writing import SITE, has_site, write_site

__all__ = ["SITE", "has_site", "write_site"]
