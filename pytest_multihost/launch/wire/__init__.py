"""The framing of messages between processes."""
