"""A report for people and programs: words (shared), lines and JSON (a terminal), page (HTML)."""
