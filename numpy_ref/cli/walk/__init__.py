"""A walk for teaching: one resume followed leaf by leaf, and five traps, each run and drawn; see `docs/walk.md`."""
