"""`mqadmin` and the other stock command names, translated to our commands."""
