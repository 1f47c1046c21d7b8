"""What equal means, what a resume must hold, and what is promised: `equivalence`, `laws` and `boundary`."""
