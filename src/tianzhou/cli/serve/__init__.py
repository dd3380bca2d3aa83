"""Commands that run a server in the foreground, and those that stop one."""
