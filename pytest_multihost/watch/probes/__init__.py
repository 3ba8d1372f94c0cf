"""Take stacks: faulthandler dumps, py-spy, pystack, torch's flight recorder."""
