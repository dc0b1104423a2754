"""Applications that show the scheduler at work."""
