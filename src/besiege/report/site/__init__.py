"""The site of a run with several models: static pages, readable without scripts and network."""

from __future__ import annotations

from besiege.report.site.writing import SITE, write_site

__all__ = ["SITE", "write_site"]
