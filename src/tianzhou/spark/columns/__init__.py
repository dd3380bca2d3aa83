"""Records as Arrow columns, by the kernel or by numpy."""
