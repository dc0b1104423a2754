"""What happened in a run: read from the write-ahead log and the journals, kept, and read again."""
