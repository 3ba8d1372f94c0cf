"""The core: it turns a test into a verdict. It imports no extension."""
