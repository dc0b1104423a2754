"""What the harness says of itself in figures: how fast it judges, how surely a failure replays."""
