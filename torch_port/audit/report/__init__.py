"""A report as lines, as JSON and as a page."""
