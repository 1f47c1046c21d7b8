"""What runs in a worker process: the user's loop, observed."""
