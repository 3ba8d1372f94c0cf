"""The server: the process that holds the collected tests and forks ranks."""
