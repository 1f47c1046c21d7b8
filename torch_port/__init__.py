"""The PyTorch port of `numpy_ref`: PyTorch as people write it, and the same bits."""
