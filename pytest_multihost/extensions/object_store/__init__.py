"""An S3 endpoint that can be made slow."""
