"""The judge: starts workers, reads their records, decides and explains. It never imports torch."""
