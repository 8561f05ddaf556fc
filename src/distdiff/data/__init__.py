"""Where training data comes from."""
