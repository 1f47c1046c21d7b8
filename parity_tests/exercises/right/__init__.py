"""Right solutions that are written differently from the references: {id: (text for NumPy, frameworks)}."""
