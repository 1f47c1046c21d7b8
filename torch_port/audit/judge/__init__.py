"""The judge: starts workers, reads their records, decides and explains; it never imports torch."""
