"""The role of this broker: a master that serves slaves, or a slave that follows its master."""
